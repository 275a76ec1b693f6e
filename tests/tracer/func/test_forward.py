"""Forward mode: tangents through ops, through formulas and by transposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.transformed import assert_as_torch
from torch.nn import functional as F

import ops_registry
import tracer
from ops_registry.errors import RuleError, RuleResultError
from ops_registry.registry import RULES, active
from tracer import func
from tracer.func.forward import Forward
from tracer.func.reverse import fresh

D, C = torch.float64, torch.complex128


def rand(*shape: int, dtype: torch.dtype = D, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed + sum(shape)))


def forward(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[list[Any], set[str]]:
    """The tangents of what ``function`` returns, and the ops that they went through by transposition."""
    run = Forward()
    with torch.enable_grad(), run:
        inputs = [fresh(p, "test") for p in primals]
        run.start(primals, inputs, tangents)
        returned = function(*inputs)
        outputs = list(returned) if isinstance(returned, tuple | list) else [returned]
        found = run.tangents_of(outputs)
    return [torch.zeros_like(o) if t is None else t for o, t in zip(outputs, found, strict=True)], run.transposed


def assert_pushed(
    function: Callable[..., Any], *primals: torch.Tensor, by_transposition: set[str] | None = None
) -> None:
    """Tangents as by ``linearize``, which transposes, and as by ``torch.func.jvp``; for each set of inputs that carries one."""
    tangents = tuple([rand(*p.shape, dtype=p.dtype, seed=5) for p in primals])
    for chosen in range(1, 2 ** len(primals)):
        some = [i for i in range(len(primals)) if chosen >> i & 1]

        def partial(*given: torch.Tensor, some: list[int] = some) -> Any:
            full = list(primals)
            for i, x in zip(some, given, strict=True):
                full[i] = x
            return function(*full)

        at, along = tuple([primals[i] for i in some]), tuple([tangents[i] for i in some])
        found, transposed = forward(partial, at, along)
        assert transposed == (by_transposition or set())
        torch.testing.assert_close(found, _listed(func.linearize(partial, *at)[1](*along)))
        torch.testing.assert_close(found, _listed(torch.func.jvp(partial, at, along)[1]))


def _listed(found: Any) -> list[torch.Tensor]:
    return [t.as_subclass(torch.Tensor) for t in (found if isinstance(found, tuple | list) else [found])]


MASK = torch.tensor([[True, False, True, True]])
INDEX = torch.tensor([2, 0, 2])

#: One call for each kind of declaration.
PUSHED = {
    "symmetric": (torch.sin, rand(3, 4)),
    "symmetric, 0-d": (torch.sin, rand()),
    "symmetric, empty": (torch.sin, rand(0, 3)),
    "symmetric, complex": (torch.tanh, rand(3, dtype=C)),
    "symmetric, non-contiguous": (torch.exp, rand(4, 3).t()),
    "symmetric, not diagonal": (lambda x: x.softmax(1), rand(3, 4)),
    "symmetric, real of real": (torch.abs, rand(3)),
    "symmetric in two, broadcast": (torch.mul, rand(3, 1), rand(4)),
    "symmetric in two, complex and real": (torch.mul, rand(3, dtype=C), rand(3)),
    "symmetric in two, real and complex": (torch.div, rand(2, 1), rand(3, dtype=C)),
    "symmetric in two, two dtypes": (torch.mul, rand(3, dtype=torch.float32).double().float(), rand(3)),
    "symmetric jointly": (torch.atan2, rand(3, 1), rand(4)),
    "symmetric of a number": (lambda x: x**3 / 2, rand(3)),
    "passes through": (torch.add, rand(2, 1), rand(3)),
    "passes through, alpha": (lambda x, y: torch.sub(x, y, alpha=2), rand(3), rand(2, 3)),
    "zero": (lambda x: x.floor() + x, rand(3)),
    "linear": (lambda x: x.sum(0, keepdim=True), rand(3, 4)),
    "linear, 0-d": (torch.mean, rand()),
    "linear, empty": (torch.sum, rand(0, 3)),
    "linear, complex": (torch.fft.fft, rand(4, dtype=C)),
    "linear over real numbers": (torch.conj_physical, rand(3, dtype=C)),
    "linear view, lazy conjugate": (lambda x: torch.view_as_real((x * x).sin()), rand(3, dtype=C)),
    "linear to real": (torch.real, rand(3, dtype=C)),
    "linear view": (lambda x: x.view(6, 2), rand(3, 4)),
    "linear view, non-contiguous tangent": (lambda x: x.expand(3, 4).contiguous().view(12), rand(4)),
    "linear method with several sizes": (lambda x: x.permute(1, 0).reshape(2, 6), rand(3, 4)),
    "linear by keyword": (lambda x: torch.transpose(input=x, dim0=0, dim1=1), rand(3, 4)),
    "linear index": (lambda x: x[INDEX, 1:], rand(3, 4)),
    "linear, several results": (lambda x: x.split([1, 3], 1), rand(3, 4)),
    "linear in a list": (lambda x, y: torch.cat([x, y, x], 1), rand(3, 2), rand(3, 1)),
    "linear in a list, a constant among it": (lambda x: torch.stack([x, torch.ones(3, dtype=D)]), rand(3)),
    "linear in each": (torch.matmul, rand(2, 3, 4), rand(4, 5)),
    "linear in each, complex": (torch.matmul, rand(3, 4, dtype=C), rand(4, dtype=C)),
    "linear in each, one tensor": (lambda x: x @ x, rand(3, 3)),
    "linear with a bias": (F.linear, rand(2, 3), rand(4, 3), rand(4)),
    "linear without a bias": (F.linear, rand(2, 3), rand(4, 3)),
    "linear with a bias by name": (
        lambda x, w, b: F.conv2d(x, w, bias=b, padding=1),
        rand(1, 2, 4, 4),
        rand(3, 2, 2, 2),
        rand(3),
    ),
    "linear with a sum": (lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), rand(4), rand(2, 3), rand(3, 4)),
    "linear jointly, a number": (lambda x: F.pad(x, (1, 2), value=3.0), rand(3)),
    "linear jointly, tensors": (lambda x, v: x.masked_fill(MASK, v), rand(3, 4), rand()),
    "linear jointly, indices": (lambda x, v: x.index_add(0, INDEX, v, alpha=3), rand(3, 2), rand(3, 2)),
    "linear contraction": (lambda x, y: torch.einsum("ij,jk->ik", x, y), rand(2, 3), rand(3, 4)),
    "kernel": (lambda g, y: torch.ops.aten.tanh_backward(g, y), rand(3), rand(3)),
}


@pytest.mark.parametrize("name", PUSHED)
def test_a_declared_op_carries_its_tangents(name: str) -> None:
    function, *primals = PUSHED[name]
    assert_pushed(function, *primals)


#: Ops of which no word is said, or none that holds here.
TRANSPOSED = {
    "layer_norm": (lambda x: F.layer_norm(x, [4]).sin(), rand(3, 4)),
    "log_softmax": (lambda x: x.sin().log_softmax(1).exp(), rand(3, 4)),
    "amax": (lambda x: x.exp().amax(1) * 2, rand(3, 4)),
    "sgn": (torch.sgn, rand(3, dtype=C)),
    "abs": (torch.abs, rand(3, dtype=C)),
    "angle": (torch.angle, rand(3, dtype=C)),
    "copy_": (lambda x: torch.zeros(3, dtype=D).copy_(x).sin(), rand(3)),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_what_is_not_declared_is_transposed_alone(name: str) -> None:
    function, *primals = TRANSPOSED[name]
    assert_pushed(function, *primals, by_transposition={name})


def test_a_joint_input_without_its_word_is_transposed() -> None:
    def embedded(weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(INDEX, weight, padding_idx=0)

    primals, tangents = (rand(3, 2),), (rand(3, 2, seed=1),)
    found, transposed = forward(embedded, primals, tangents)
    assert transposed == {"embedding"}  # its gradient leaves the padding out, and the op does not
    assert found[0][1].tolist() == [0.0, 0.0]


PROGRAMS = {
    "a write": lambda x: x.clone().mul_(x).sin(),
    "a write through a view": lambda x: _write_through_a_view(x),
    "a view of what was written": lambda x: _view_of_written(x),
    "a buffer": lambda x: _filled_buffer(x),
    "an index": lambda x: _written_by_index(x),
    "unused": lambda x: (x.cumprod(0), x.sin())[1],
    "a branch that is constant": lambda x: (x * torch.ones(3, 3, dtype=D).exp()).cumsum(1),
    "detached": lambda x: x.detach() * x,
    "itself": lambda x: x,
    "a constant": lambda x: torch.ones(2, dtype=D),
    "no_grad": lambda x: _under_no_grad(x),
    "a piece of several": lambda x: F.layer_norm(x, [3]).cumprod(1).log_softmax(1) + x,
    "used twice": lambda x: _used_twice(x),
    "vmapped": lambda x: torch.vmap(lambda row: row.sin() * x[0])(x),
}


def _write_through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0].mul_(x[1])
    return y.exp()


def _view_of_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    row = y[0]
    y.mul_(x)
    return row * 3


def _filled_buffer(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(3, 3, dtype=x.dtype)
    for i in range(3):
        buffer[i] = x[i].cos() * i
    return buffer.sum(0)


def _written_by_index(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y > 0] = 0.5
    return y * x


def _under_no_grad(x: torch.Tensor) -> torch.Tensor:
    return x * x.sin()


def _used_twice(x: torch.Tensor) -> torch.Tensor:
    y = x.cumprod(0)
    return (y * 2).sum() + y.logcumsumexp(1).sum() + (y @ y).sum()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_tangent_that_torch_gives_it(name: str) -> None:
    primals, tangents = (rand(3, 3),), (rand(3, 3, seed=1),)
    value, found = func.jvp(PROGRAMS[name], primals, tangents)
    expected_value, expected = torch.func.jvp(PROGRAMS[name], primals, tangents)
    torch.testing.assert_close(value.as_subclass(torch.Tensor), expected_value)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)


def test_a_network_is_pushed_through_with_its_parameters() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.AvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 3)
    ).double()  # fmt: skip
    params = {name: p.detach() for name, p in model.named_parameters()}
    tangents = {name: torch.randn_like(p) for name, p in params.items()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    x = rand(2, 1, 6, 6)

    def run(params: Any) -> torch.Tensor:
        return torch.func.functional_call(model, (params, {n: b.clone() for n, b in buffers.items()}), (x,))

    found, expected = (t.jvp(run, (params,), (tangents,))[1] for t in (func, torch.func))
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("tracked", [False, True], ids=["plain", "tracked"])
def test_jacfwd_is_jacrev(tracked: bool) -> None:
    w = rand(3, 3)
    w = tracer.tensor(w, requires_grad=True) if tracked else w

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm((w @ x).tanh(), [3]).softmax(0) * x.view(3)

    x = rand(3)
    torch.testing.assert_close(func.jacfwd(f)(x).detach(), func.jacrev(f)(x).detach())


def test_the_columns_of_an_op_that_is_transposed_are_those_of_torch() -> None:
    x = rand(3)
    expected = torch.func.jacrev(lambda x: x.cumprod(0).sin())(x)
    torch.testing.assert_close(func.jacfwd(lambda x: x.cumprod(0).sin())(x).as_subclass(torch.Tensor), expected)


#: Programs of two leaves, of which ``jvp`` sees the first: the second is closed over.
NESTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "closed over": lambda x, w: torch.func.jvp(lambda x: (w @ x).sin() * w[0], (x,), (torch.ones_like(x),))[1],
    "closed over, linear": lambda x, w: torch.func.jvp(lambda x: F.linear(x, w.exp()), (x,), (torch.ones_like(x),))[1],
    "closed over, transposed": lambda x, w: torch.func.jvp(lambda x: (w @ x).log_softmax(0), (x,), (x.detach(),))[1],
    "tangent": lambda x, w: torch.func.jvp(lambda x: x.sin().cumprod(0), (x.detach(),), (w[0],))[1],
    "twice": lambda x, w: torch.func.jvp(
        lambda x: torch.func.jvp(lambda y: (w @ y).tanh() * x, (x,), (x * 2,))[1], (x,), (torch.ones_like(x),)
    )[1],
    "of grad": lambda x, w: torch.func.jvp(torch.func.grad(lambda y: (w @ y).tanh().pow(2).sum()), (x,), (x * w[1],))[1],
    "grad of": lambda x, w: torch.func.grad(
        lambda y: torch.func.jvp(lambda z: (w @ z).sigmoid() * y, (y,), (y.sin(),))[1].sum()
    )(x),
    "vmapped": lambda x, w: torch.vmap(lambda row: torch.func.jvp(lambda y: (y * row).cos(), (x,), (row,))[1])(w),
    "jacfwd of jacrev": lambda x, w: torch.func.jacfwd(torch.func.jacrev(lambda y: (w @ y).tanh().prod()))(x),
    "jacfwd twice": lambda x, w: torch.func.jacfwd(torch.func.jacfwd(lambda y: (w @ y).tanh().sum()))(x),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_tangents_are_differentiated_through(name: str) -> None:
    assert_as_torch(NESTED[name], rand(3), rand(3, 3, seed=2))


def test_over_complex_numbers_a_kernel_that_is_not_holomorphic_is_transposed() -> None:
    primals, tangents = (rand(3, dtype=C), rand(3, dtype=C, seed=1)), (rand(3, dtype=C, seed=2),) * 2
    found, transposed = forward(torch.ops.aten.tanh_backward, primals, tangents)
    assert transposed == {"tanh_backward"}
    torch.testing.assert_close(found, _listed(func.linearize(torch.ops.aten.tanh_backward, *primals)[1](*tangents)))


# ---------------------------------------------------------------------- rules
def test_a_replaced_rule_is_transposed() -> None:
    x, t = rand(3), rand(3, seed=1)
    with ops_registry.use({torch.sin: lambda grad, input: 2 * grad * input.cos()}):
        found, transposed = forward(lambda x: x.sin() * 1, (x,), (t,))
        columns = func.jacfwd(torch.sin)(x)
    assert transposed == {"sin"}
    torch.testing.assert_close(found[0], 2 * t * x.cos())
    torch.testing.assert_close(columns, torch.diag(2 * x.cos()))


def test_a_rule_replaced_inside_the_function_is_transposed() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with ops_registry.use({torch.matmul: {"other": lambda grad, input: 3 * (input.mT @ grad)}}):
            return torch.full((1, 3), 2.0, dtype=D) @ x

    found, _ = forward(inside, (rand(3, 1),), (torch.ones(3, 1, dtype=D),))
    assert found[0].tolist() == [[18.0]]


def test_a_replaced_formula_forgets_what_was_said_of_its_inputs() -> None:
    with ops_registry.use(
        {F.linear: {"bias": lambda grad: grad}, torch.mul: {"input": lambda grad, other: grad * other}}, expect=None
    ):
        linear, mul = ops_registry.lookup(F.linear), ops_registry.lookup(torch.mul)
        assert linear is not None and mul is not None
        assert linear.linear == () and linear.symmetric == frozenset()
        assert mul.symmetric == {"other"}
    assert RULES["linear"].linear == (("input", "bias"), ("weight", "bias"))


def test_a_word_that_names_no_input_is_refused() -> None:
    with pytest.raises(RuleError, match="has no input 'bogus' to be linear or symmetric in"):
        ops_registry.backward(torch.sin, replace=True, linear=["bogus"])(lambda grad: grad)


def test_a_declaration_that_does_not_hold_is_named(clean_registry: None) -> None:
    ops_registry.backward(torch.logsumexp, replace=True, symmetric=True)(
        lambda grad, input_shape: grad.expand(input_shape)
    )
    with pytest.raises(RuleResultError, match=r"logsumexp: a tangent of shape \(3, 4\).*linear or symmetric"):
        func.jvp(lambda x: x.logsumexp((0, 1)), (rand(3, 4),), (rand(3, 4),))


def test_a_replacement_may_say_the_same(clean_registry: None) -> None:
    ops_registry.backward(torch.sin, replace=True, symmetric=True)(lambda grad, input: 2 * grad * input.cos())
    found, transposed = forward(torch.sin, (rand(3),), (torch.ones(3, dtype=D),))
    assert not transposed
    torch.testing.assert_close(found[0], 2 * rand(3).cos())


# ---------------------------------------------------------------------- the run
def test_the_table_of_rules_is_as_before_when_the_function_raises() -> None:
    before = active.table
    with pytest.raises(ZeroDivisionError):
        func.jvp(lambda x: x * (1 // 0), (rand(3),), (rand(3),))
    assert active.table is before


def test_an_op_without_a_rule_raises_only_where_its_tangent_is_asked_for() -> None:
    library = torch.library.Library("forward_border", "DEF")
    library.define("unknown(Tensor x) -> Tensor")
    library.impl("unknown", lambda x: x * 2, "CompositeExplicitAutograd")
    unknown = torch.ops.forward_border.unknown
    x = rand(3)
    assert torch.equal(func.jvp(lambda x: (unknown(x).reshape(3, 1), x * 1)[1], (x,), (x,))[1], x)
    with pytest.raises(RuntimeError, match="unknown"):
        func.jvp(lambda x: unknown(x).reshape(3, 1), (x,), (x,))


def test_under_autocast_tangents_are_cast_as_values_are() -> None:
    x, w = rand(3, 4).float(), rand(4, 2).float()
    with torch.autocast("cpu", torch.bfloat16):
        value, found = func.jvp(lambda x: (x @ w).sin(), (x,), (x,))
        expected = torch.func.jvp(lambda x: (x @ w).sin(), (x,), (x,))[1]
    assert found.dtype == value.dtype == torch.bfloat16
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_result_has_its_tangent(convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, t = rand(3, 3), rand(3, 3, seed=1)
    for found in (func.jvp(convert, (x,), (t,))[1], func.linearize(convert, x)[1](t)):
        assert found.layout is convert(x).layout
        assert torch.equal(found.to_dense(), t)


def test_what_nothing_outside_asks_for_has_no_history() -> None:
    x = rand(3)
    value, tangent = func.jvp(lambda x: F.layer_norm(x.sin(), [3]), (x,), (x,))
    assert not value.requires_grad and not tangent.requires_grad
