"""Ops of somebody's own library: the backward that they bring is the op's rule, in every spelling, and to second order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import ops_registry
import tracer
from tracer.recording import library_ops

LIBRARY = torch.library.Library("glassgrad_library_ops", "DEF")
OPS = torch.ops.glassgrad_library_ops
NAME = "glassgrad_library_ops::"


# ---------------------------------------------------------------- ops, each with a backward of another kind
def save_first(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.k = inputs[1] if len(inputs) > 1 else 1.0


def cube_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return grad * 3 * x**2 * ctx.k, None


@torch.library.custom_op(f"{NAME}cube", mutates_args=())
def cube(x: Tensor, k: float = 2.0) -> Tensor:
    return torch.from_numpy(x.detach().numpy() ** 3 * k)


cube.register_autograd(cube_backward, setup_context=save_first)

LIBRARY.define("cube_of_a_library(Tensor x, float k=2.0) -> Tensor")
LIBRARY.impl("cube_of_a_library", lambda x, k=2.0: x**3 * k, "CPU")
torch.library.register_autograd(f"{NAME}cube_of_a_library", cube_backward, setup_context=save_first, lib=LIBRARY)

LIBRARY.define("cube_by_function(Tensor x, float k=2.0) -> Tensor")
LIBRARY.impl("cube_by_function", lambda x, k=2.0: x**3 * k, "CPU")


class Cube(torch.autograd.Function):
    """What op packages do without ``register_autograd``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        with torch._C._AutoDispatchBelowAutograd():
            return OPS.cube_by_function(x, k)

    backward = staticmethod(cube_backward)


LIBRARY.impl("cube_by_function", lambda x, k=2.0: Cube.apply(x, k), "Autograd")

LIBRARY.define("cube_of_parts(Tensor x, float k=2.0) -> Tensor")
LIBRARY.impl("cube_of_parts", lambda x, k=2.0: x * x * x * k, "CompositeImplicitAutograd")

LIBRARY.define("cube_without_a_key(Tensor x, float k=2.0) -> Tensor")
LIBRARY.impl("cube_without_a_key", lambda x, k=2.0: x * x * x * k)

LIBRARY.define("cube_by_device.named(Tensor x, float k=2.0) -> Tensor")
LIBRARY.define("cube_by_device.two(Tensor x, Tensor k) -> Tensor")
LIBRARY.impl("cube_by_device.named", lambda x, k=2.0: x * x * x * k, "AutogradCPU")
LIBRARY.impl("cube_by_device.two", lambda x, k: x * x * x * k, "AutogradCPU")


@torch.library.triton_op(f"{NAME}cube_of_triton", mutates_args=())
def cube_of_triton(x: Tensor, k: float = 2.0) -> Tensor:
    return x**3 * k


cube_of_triton.register_autograd(cube_backward, setup_context=save_first)

CUBES: dict[str, Callable[..., Tensor]] = {
    "custom_op": cube,
    "custom_op, packet": OPS.cube,
    "custom_op, overload": OPS.cube.default,
    "register_autograd of a library's op": OPS.cube_of_a_library,
    "the library's op, overload": OPS.cube_of_a_library.default,
    "a Function under Autograd": OPS.cube_by_function,
    "a Function under Autograd, overload": OPS.cube_by_function.default,
    "made of others": OPS.cube_of_parts,
    "without a key": OPS.cube_without_a_key,
    "one of two overloads, under a device's key": OPS.cube_by_device,
    "one of two overloads, named": OPS.cube_by_device.named,
    "triton_op": cube_of_triton,
}


def leaf(*values: float) -> Tensor:
    return tracer.tensor(torch.tensor(values, dtype=torch.float64), requires_grad=True)


@pytest.mark.parametrize("op", CUBES.values(), ids=CUBES)
def test_the_backward_that_an_op_brings_is_its_rule(op: Callable[..., Tensor]) -> None:
    x = leaf(1.0, 2.0)
    y = op(x * 1, 3.0)
    (y.sum() + 0 * x.sum()).backward()
    assert y.tolist() == [3.0, 24.0]
    assert x.grad is not None and x.grad.tolist() == [9.0, 36.0]


@pytest.mark.parametrize("op", CUBES.values(), ids=CUBES)
def test_it_is_recorded_to_higher_orders(op: Callable[..., Tensor]) -> None:
    x = leaf(1.0, 2.0)
    (first,) = torch.autograd.grad(op(x, 3.0).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    assert second.tolist() == [18.0, 36.0] and third.tolist() == [18.0, 18.0]


@pytest.mark.parametrize("op", CUBES.values(), ids=CUBES)
def test_defaults_keywords_and_plain_leaves(op: Callable[..., Tensor]) -> None:
    x, plain = leaf(1.0), torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    (op(x=x).sum() + op(x * plain).sum() + (x * 0 + op(plain)).sum()).backward()
    assert x.grad is not None and plain.grad is not None
    assert x.grad.tolist() == [6 + 162.0] and plain.grad.tolist() == [54 + 54.0]


@pytest.mark.parametrize("op", CUBES.values(), ids=CUBES)
def test_nothing_is_recorded_where_nothing_wants_a_gradient(op: Callable[..., Tensor]) -> None:
    assert not op(tracer.tensor([1.0])).requires_grad
    with torch.no_grad():
        assert not op(leaf(1.0)).requires_grad


def test_a_rule_of_ours_comes_first(clean_registry: None) -> None:
    ops_registry.backward(OPS.cube)(lambda grad: grad * 100)
    for op in (cube, OPS.cube, OPS.cube.default):
        x = leaf(1.0)
        op(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [100.0]


def test_a_rule_inside_the_backward_is_replaced_as_any() -> None:
    x = leaf(2.0)
    y = OPS.cube_of_parts(x, 1.0)
    with ops_registry.use({torch.mul: {"input": lambda grad, other: grad * 0, "other": lambda grad, input: grad * 0}}):
        z = OPS.cube_of_parts(x, 1.0)
    (first,), (second,) = torch.autograd.grad(y.sum(), x), torch.autograd.grad(z.sum(), x)
    assert first.tolist() == [12.0] and second.tolist() == [0.0]


def test_the_graph_shows_the_call() -> None:
    x = leaf(1.0)
    with tracer.Graph() as graph:
        y = cube(x)
    assert list(graph.counts()) == ["GeneratedBackwardFor_glassgrad_library_ops_cube_default"]
    assert y.grad_fn.name() == "GeneratedBackwardFor_glassgrad_library_ops_cube_defaultBackward"  # as in torch


def test_a_checkpointed_stretch_with_such_an_op() -> None:
    x = leaf(1.0, 2.0)
    torch.utils.checkpoint.checkpoint(lambda t: cube(t * 2, 1.0).sum(), x, use_reentrant=False).backward()
    assert x.grad is not None and x.grad.tolist() == [24.0, 96.0]


def test_before_there_was_a_way_past_one_call_torch_differentiates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_ops, "skip_one_hop", None)
    x = leaf(1.0, 2.0)
    (g,) = torch.autograd.grad(cube(x, 3.0).sum(), x, create_graph=True)
    assert g.tolist() == [9.0, 36.0]
    with pytest.raises(tracer.SecondDerivativeError, match=r"cube.*Write a rule"):
        g.sum().backward()


# ---------------------------------------------------------------- signatures
@torch.library.custom_op(f"{NAME}weighted", mutates_args=())
def weighted(xs: Sequence[Tensor], w: Tensor | None, *, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    total = sum(x.detach().clone() for x in xs) * scale
    return (total if w is None else total * w), torch.tensor(len(xs))


def weighted_setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    xs, w = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*xs, w)
    ctx.scale = keyword_only_inputs["scale"]


def weighted_backward(ctx: Any, grad: Tensor, _: Any) -> Any:
    *xs, w = ctx.saved_tensors
    assert len(ctx.needs_input_grad) == 2 and len(ctx.needs_input_grad[0]) == len(xs)
    grads = [grad * ctx.scale * (1 if w is None else w) if needed else None for needed in ctx.needs_input_grad[0]]
    return grads, (sum(xs) * ctx.scale * grad if w is not None else None)


weighted.register_autograd(weighted_backward, setup_context=weighted_setup)


@pytest.mark.parametrize("tracked", [True, False], ids=["tracked", "torch"])
def test_lists_optional_and_keyword_only_arguments_and_results_without_a_gradient(tracked: bool) -> None:
    def make(value: float) -> Tensor:
        made = torch.tensor([value], dtype=torch.float64)
        return tracer.tensor(made, requires_grad=True) if tracked else made.requires_grad_()

    a, b, w = make(1.0), make(2.0), make(5.0)
    constant = torch.tensor([4.0], dtype=torch.float64)
    total, count = weighted([a, constant, b], w, scale=3.0)
    (first,) = torch.autograd.grad(total.sum(), a, create_graph=True)
    (first * 7 + weighted([a, a], None)[0] + 0 * b).sum().backward()
    assert count.tolist() == 3 and not count.requires_grad
    assert [t.grad.tolist() for t in (a, b, w) if t.grad is not None] == [[2.0], [0.0], [21.0]]


LIBRARY.define("scale_by(Tensor x) -> Tensor")
LIBRARY.impl("scale_by", lambda x: x * 2, "CPU")
torch.library.register_autograd(f"{NAME}scale_by", lambda ctx, grad: grad * 2, lib=LIBRARY)


def test_a_backward_without_setup_context() -> None:
    x = leaf(1.0)
    (OPS.scale_by(x).sum() + 0 * x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [2.0]


LIBRARY.define("first_row(Tensor(a) x) -> Tensor(a)")
LIBRARY.impl("first_row", lambda x: x[0], "CompositeImplicitAutograd")


def test_an_op_that_returns_a_view() -> None:
    x = leaf(1.0, 2.0)
    y = x * 1
    OPS.first_row(y).mul_(5)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5.0, 1.0]


# ---------------------------------------------------------------- no backward
@torch.library.custom_op(f"{NAME}silent", mutates_args=())
def silent(x: Tensor) -> Tensor:
    return x.detach() * 2


LIBRARY.define("silent_of_a_library(Tensor x) -> (Tensor, Tensor[])")
LIBRARY.impl("silent_of_a_library", lambda x: (x * 2, [x * 3, x * 4]), "CPU")


@pytest.mark.parametrize("op", [silent, OPS.silent, OPS.silent.default], ids=["op", "packet", "overload"])
def test_an_op_without_a_backward_raises_there_and_says_how_to_give_it_one(op: Callable[..., Tensor]) -> None:
    x = leaf(1.0)
    with pytest.raises(tracer.MissingRuleError, match=rf'(?s)silent.*register_autograd\("{NAME}silent'):
        (op(x).sum() + x.sum()).backward()
    assert x.grad is None


@pytest.mark.parametrize(
    "pick", [lambda r: r[0], lambda r: r[1][0], lambda r: r[1][1]], ids=["alone", "listed", "last"]
)
def test_a_result_in_a_list_beside_others_raises_too(pick: Callable[..., Tensor]) -> None:
    x = leaf(1.0)
    with pytest.raises(tracer.MissingRuleError, match="silent_of_a_library"):
        (pick(OPS.silent_of_a_library(x)).sum() + x.sum()).backward()


def test_a_backward_registered_later_serves_the_calls_after_it() -> None:
    @torch.library.custom_op(f"{NAME}late", mutates_args=())
    def late(x: Tensor) -> Tensor:
        return x.detach() * 2

    x = leaf(1.0)
    with pytest.raises(tracer.MissingRuleError):
        late(x).sum().backward()
    late.register_autograd(lambda ctx, grad: grad * 2)
    late(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0]


# ---------------------------------------------------------------- ops that write
@torch.library.custom_op(f"{NAME}double_", mutates_args={"x", "others"})
def double_(source: Tensor, x: Tensor, others: list[Tensor]) -> None:
    for tensor in (x, *others):
        tensor.detach().mul_(source.detach())


WRITTEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "argument with a history": lambda x, plain: (double_(x * 2, target := x * 1, []), target)[1],
    "plain argument": lambda x, plain: (double_(x * 2, plain, []), plain)[1],
    "in a list": lambda x, plain: (double_(torch.ones(1).double(), x * 1, [plain, target := x * 1]), target)[1],
    "by keyword": lambda x, plain: (double_(source=x, others=[], x=(target := x * 1)), target)[1],
    "packet": lambda x, plain: (OPS.double_(x * 2, plain, []), plain)[1],
}


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_what_an_op_without_a_backward_has_written_raises_in_backward(
    write: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x = leaf(3.0)
    written = write(x, torch.ones(1, dtype=torch.float64))
    with pytest.raises(tracer.MissingRuleError, match="double_"):
        (written.sum() + x.sum()).backward()


def test_an_op_that_writes_into_a_leaf_is_refused_and_nothing_is_written() -> None:
    x = leaf(3.0)
    with pytest.raises(tracer.InPlaceError, match=r"double_.*leaf"):
        double_(torch.ones(1), x, [])
    assert x.tolist() == [3.0]
    with torch.no_grad():
        double_(x, x, [])
    assert x.tolist() == [9.0]


LIBRARY.define("add_one_(Tensor(a!) x) -> ()")
LIBRARY.impl("add_one_", lambda x: silently(x.add_, 1), "CPU")


def silently(write: Callable[[float], Tensor], value: float) -> None:
    with torch.no_grad():
        write(value)


def below_autograd(x: Tensor) -> None:
    with torch._C._AutoDispatchBelowAutograd():
        OPS.add_one_(x)


LIBRARY.impl("add_one_", below_autograd, "Autograd")


def test_a_write_that_the_implementation_says_nothing_of_raises_in_backward() -> None:
    x = leaf(3.0)
    y = x * 2
    OPS.add_one_(y)
    with pytest.raises((tracer.MissingRuleError, tracer.InPlaceError), match="add_one"):
        (y.sum() + x.sum()).backward()


# ---------------------------------------------------------------- implementations in C++
def test_an_op_in_cpp_that_is_made_of_others_is_left_to_torch() -> None:
    x = leaf(-1.0, 2.0)
    (torch.ops._test.leaky_relu(x, 0.5).sum() + 0 * x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [0.5, 1.0]
    (g,) = torch.autograd.grad(torch.ops._test.leaky_relu(x, 0.5).sum(), x, create_graph=True)
    with pytest.raises(tracer.SecondDerivativeError, match="leaky_relu"):
        g.sum().backward()


def test_torchs_own_ops_whose_backward_only_refuses_name_the_rule_to_write() -> None:
    x = leaf(1.0)
    with pytest.raises(tracer.MissingRuleError, match=r"backward\(torch\.ops\.prims\.bessel_j1"):
        (torch.ops.prims.bessel_j1(x).sum() + x.sum()).backward()
