"""Rules of ``ops_registry/rules/foreach.py``: every ``_foreach_*`` function that torch has, in every overload."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.leaves import leaf, tracked
from torch.utils._python_dispatch import TorchDispatchMode

import ops_registry
import tracer
from ops_registry.torch_private import schemas

#: torch itself has no derivative of it.
WITHOUT_DERIVATIVE = {"_foreach_powsum"}

NAMES = [name for name in dir(torch) if name.startswith("_foreach_")]
OVERLOADS = [
    (name, overload)
    for name in NAMES
    if name not in WITHOUT_DERIVATIVE
    for overload, schema in schemas(getattr(torch.ops.aten, name)).items()
    if all(argument.name != "out" for argument in schema.arguments)
]

#: What torch itself does not differentiate, or fails to ("inconsistent range for TensorList output"): its own calls of the same values.
REFERENCES: dict[tuple[str, str], Any] = {
    ("_foreach_add", "Tensor"): lambda a, b, alpha: [torch.add(t, b, alpha=alpha) for t in a],
    ("_foreach_mul", "Tensor"): lambda a, b: [t * b for t in a],
    ("_foreach_div", "Tensor"): lambda a, b: [t / b for t in a],
    ("_foreach_addcmul", "Tensor"): lambda a, b, c, s: torch._foreach_addcmul(a, b, c, s.tolist()),
    ("_foreach_addcdiv", "Tensor"): lambda a, b, c, s: torch._foreach_addcdiv(a, b, c, s.tolist()),
    **{
        (f"{name}_", overload): getattr(torch, name)
        for name in ("_foreach_maximum", "_foreach_minimum")
        for overload in ("Scalar", "ScalarList")
    },
    ("_foreach_copy_", "default"): lambda a, b: [t.copy_(s) for t, s in zip(a, b, strict=True)],
}


def arguments(name: str, overload: str, leaves: list[torch.Tensor], make: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of an overload by its schema, of two places; ``make`` turns data into leaves, which are appended to ``leaves``."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Any:
        leaves.append(make(torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1))
        return leaves[-1]

    def value(kind: str, argument: str) -> Any:
        if kind == "List[Tensor]":
            return [draw(2, 2), draw(2, 2)]
        if kind == "Tensor":
            return torch.tensor([1.5, 0.5]) if argument == "scalars" else draw()
        if kind.startswith("List["):
            return [1.5, 0.5]
        return 2.5

    given: list[Any] = []
    named: dict[str, Any] = {}
    for a in schemas(getattr(torch.ops.aten, name))[overload].arguments:
        if "Tensor" not in str(a.type) and "number" not in str(a.type):
            continue  # dtypes, memory formats, flags: by their defaults
        if a.kwarg_only:
            named[a.name] = value(str(a.type), a.name)
        else:
            given.append(value(str(a.type), a.name))
    return given, named


def run(name: str, overload: str, make: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, gradients and second derivatives, with leaves that ``make`` makes."""
    leaves: list[Any] = []
    given, named = arguments(name, overload, leaves, make)
    if name.endswith("_"):
        given[0] = [t * 1 for t in given[0]]
    function = getattr(torch, name)
    if make is native:
        function = REFERENCES.get((name, overload)) or REFERENCES.get((name.rstrip("_"), overload), function)
    results = function(*given, **named)
    total = sum((r * r).sum() * (i + 1) for i, r in enumerate(results)) + 0 * sum(t.sum() for t in leaves)
    grads = torch.autograd.grad(total, leaves, create_graph=True)
    # Each with a term beside it, without which a derivative that is zero throughout has no history.
    second = torch.autograd.grad(sum(g.cos().sum() for g in grads) + sum((t * t).sum() for t in leaves), leaves)
    return list(results), list(grads), list(second)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tracer.track(tensor.detach()).as_subclass(torch.Tensor)


def native(data: torch.Tensor) -> torch.Tensor:
    return data.clone().requires_grad_()


def test_every_function_of_a_list_has_a_rule() -> None:
    missing = {name for name in NAMES if ops_registry.lookup(getattr(torch, name)) is None}
    assert missing == WITHOUT_DERIVATIVE & set(NAMES)


@pytest.mark.parametrize(("name", "overload"), OVERLOADS)
def test_values_and_first_and_second_derivatives_are_torchs(name: str, overload: str) -> None:
    for ours, theirs in zip(run(name, overload, tracked), run(name, overload, native), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(plain(a), b.detach())


def pair() -> tuple[tracer.Tensor, tracer.Tensor]:
    return leaf(1.0, 2.0), leaf(3.0, 4.0)


def test_keywords_of_every_overload_are_understood() -> None:
    x, y = pair()
    results = [
        torch._foreach_mul([x], scalar=2.0),
        torch._foreach_mul([x], other=[y]),
        torch._foreach_mul([x], scalars=[2.0]),
        torch._foreach_addcmul([x], [y], [y], value=2.0),
        torch._foreach_addcmul([x], tensor1=[y], tensor2=[y], scalars=[2.0]),
        torch._foreach_addcmul([x], [y], [y], scalars=torch.tensor([2.0])),
        torch._foreach_lerp([x], [y], weight=0.5),
        torch._foreach_lerp([x], [y], weights=[y]),
        torch._foreach_pow(self=2.0, exponent=[x]),
        torch._foreach_norm([x], ord=1, dtype=torch.float64),
        torch._foreach_sub([x], [y], alpha=3.0),
        torch._foreach_add([x], torch.tensor(1.0), alpha=3.0),
    ]
    a, b = x.detach(), y.detach()
    expected = [2 * a, a * b, 2 * a, a + 2 * b * b, a + 2 * b * b, a + 2 * b * b, (a + b) / 2, a + b * (b - a), 2.0**a]
    expected += [a.sum(), a - 3 * b, a + 3]
    for (result,), value in zip(results, expected, strict=True):
        assert result.requires_grad
        torch.testing.assert_close(plain(result), plain(value))


def test_torchs_overloads_fall_under_the_same_rule() -> None:
    x, y = pair()
    aten = torch.ops.aten
    for call in (aten._foreach_mul, aten._foreach_mul.List):
        (product,) = call([x], [y])
        assert torch.autograd.grad(product.sum(), x)[0].tolist() == [3.0, 4.0]


def test_an_overload_that_writes_in_place_returns_nothing_as_in_torch() -> None:
    x, y = pair()
    target = y * 1
    for call in (torch.ops.aten._foreach_mul_, torch.ops.aten._foreach_mul_.List):
        assert call([target], [x]) is None
    assert torch.autograd.grad(target.sum(), y)[0].tolist() == [1.0, 4.0]


def test_each_tensor_is_recorded_under_the_rule_of_the_single_op() -> None:
    x, y = pair()
    with tracer.Graph() as graph:
        results = torch._foreach_addcmul([x, y], [y, y], [x, x], [2.0, 3.0])
    assert len(results) == 2
    assert graph.counts() == {"addcmul": 2}


def test_a_replaced_rule_of_the_single_op_is_honoured() -> None:
    x, y = pair()
    with ops_registry.use({torch.exp: lambda grad: grad * 7}):
        total = sum(t.sum() for t in torch._foreach_exp([x, y]))
    total.backward()
    assert x.grad is not None and x.grad.tolist() == [7.0, 7.0]


def test_only_what_wants_a_gradient_is_differentiated() -> None:
    x, _ = pair()
    constant, untracked = tracer.tensor([1.0, 1.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    a, b, c = torch._foreach_mul([x, constant, untracked], 2.0)
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, False)


def test_leaves_of_torchs_own_autograd_get_their_gradients() -> None:
    x, _ = pair()
    theirs = torch.ones(2, dtype=torch.float64, requires_grad=True)
    a, b = torch._foreach_mul([x, theirs], [theirs, x])
    ((a + b).sum() + 0 * x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]
    assert theirs.grad is not None and theirs.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("op", ["maximum", "minimum", "clamp_min", "clamp_max"])
def test_ties_with_a_number_are_shared_as_torch_does(op: str) -> None:
    x, theirs = leaf(1.0, 2.0, 3.0), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    for data in (x, theirs):
        getattr(torch, f"_foreach_{op}")([data], 2)[0].sum().backward()
    torch.testing.assert_close(x.grad, theirs.grad)


def test_a_number_beside_integers_promotes_as_in_torch() -> None:
    x = leaf(1.0)
    whole = torch.tensor([1, 2])
    _, ours = torch._foreach_maximum([x, whole], 1.5)
    assert ours.dtype is torch._foreach_maximum([whole], 1.5)[0].dtype and ours.tolist() == [1.5, 2.0]


# ---------------------------------------------------------------------- in place
def test_a_write_that_torch_forbids_writes_nothing() -> None:
    x, y = pair()
    target = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(tracer.InPlaceError, match="_foreach_add_ writes into a leaf"):
        torch._foreach_add_([target, x], [y, y])
    assert target.tolist() == [0.0, 0.0] and x.tolist() == [1.0, 2.0]


def test_a_write_into_plain_tensors_makes_them_tracked() -> None:
    x, y = pair()
    buffers = [torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)]
    returned = torch._foreach_mul_(buffers, [x, y])
    assert all(r is b for r, b in zip(returned, buffers, strict=True))
    (sum(b.sum() for b in buffers) + 0 * x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 1.0]


def test_a_write_through_views_reaches_their_base() -> None:
    x, y = pair()
    base = torch.zeros(2, 2, dtype=torch.float64)
    torch._foreach_copy_([base[0], base[1]], [x, y])
    (base * base).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]
    assert y.grad is not None and y.grad.tolist() == [6.0, 8.0]


def test_an_integer_target_is_refused_and_not_cut() -> None:
    x, _ = pair()
    for op in (torch._foreach_maximum_, torch._foreach_add_):
        with pytest.raises(RuntimeError, match=r"cannot be written|can't be cast"):
            op([torch.ones(2, dtype=torch.int64)], [x])


# ---------------------------------------------------------------------- what is refused
def test_lists_of_different_lengths_are_refused() -> None:
    x, y = pair()
    for lists in (([x], [y, y]), ([x, y], [2.0])):
        with pytest.raises(ops_registry.UnsupportedCallError, match=r"_foreach_mul takes lists of one length"):
            torch._foreach_mul(*lists)


def test_numbers_in_a_tensor_that_requires_grad_are_refused() -> None:
    x, y = pair()
    for keyword in ({"scalars": y[:1]}, {"value": y[0]}):
        with pytest.raises(ops_registry.UnsupportedCallError, match="no gradient for the numbers"):
            torch._foreach_addcmul([x], [x], [x], **keyword)
    with pytest.raises(ops_registry.UnsupportedCallError, match="no gradient for the numbers"):
        torch._foreach_addcmul([x], [x], [x], y[:1])


@pytest.mark.skipif(not hasattr(torch, "_foreach_powsum"), reason="new in torch 2.13")
def test_what_torch_cannot_differentiate_raises_in_backward() -> None:
    x, _ = pair()
    (powers,) = torch._foreach_powsum([x], 2)
    with pytest.raises(tracer.MissingRuleError, match="_foreach_powsum"):
        (powers + 0 * x.sum()).backward()


def test_out_is_refused() -> None:
    x, _ = pair()
    with pytest.raises(tracer.OutArgumentError):
        torch.ops.aten._foreach_exp.out([x], out=[torch.zeros(2, dtype=torch.float64)])


# ---------------------------------------------------------------------- where no gradient is wanted
class Calls(TorchDispatchMode):
    """The names of all calls that reach torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_without_a_gradient_the_lists_go_to_torch_in_one_call() -> None:
    x, y = pair()
    with torch.no_grad(), Calls() as calls:
        (product,) = torch._foreach_mul([x], [y])
        torch._foreach_add_([x], 1.0)
    assert calls.names == ["aten._foreach_mul.List", "aten._foreach_add_.Scalar"]
    assert type(product) is tracer.Tensor and not product.requires_grad


@pytest.mark.parametrize("op", ["mm", "exp", "norm", "log", "reciprocal", "erf", "rsqrt"])
def test_autocast_gives_torchs_dtypes(op: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        found = []
        for data in (tracer.tensor(torch.rand(2, 2), dtype=dtype, requires_grad=True), torch.rand(2, 2, dtype=dtype)):
            other = ([data],) if op == "mm" else ()
            with torch.autocast("cpu", torch.bfloat16):
                found.append(getattr(torch, f"_foreach_{op}")([data.requires_grad_()], *other)[0].dtype)
        assert found[0] is found[1]
