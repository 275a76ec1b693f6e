"""Rules of ``ops_registry/rules/matrix_products.py``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.checking import Case, Make, case, plain, rand, run_case, values
from support.layouts import transposed

import tracer
from ops_registry.rules.matrix_products import cheapest_splits

C = torch.complex128


def expanded(make: Make, *shape: int) -> Make:
    """A tensor of stride 0 along its broadcast axes."""
    return lambda device: make(device).expand(shape)


#: Shapes of both sides of a product over an axis of length 4: every pair of ranks from 1 to 5, with broadcast batches.
LEFT = [(4,), (3, 4), (2, 3, 4), (1, 3, 4), (5, 2, 3, 4), (5, 1, 3, 4), (2, 5, 2, 3, 4), (1, 5, 1, 3, 4)]
RIGHT = [(4,), (4, 3), (2, 4, 3), (1, 4, 3), (5, 2, 4, 3), (5, 1, 4, 3), (2, 5, 2, 4, 3), (2, 1, 2, 4, 3)]
PAIRS = list(itertools.product(LEFT, RIGHT))

#: Products with an axis of length 0: the rows, the columns, the batch, the contracted axis.
EMPTY = [
    ((0, 4), (4, 3)),
    ((3, 4), (4, 0)),
    ((3, 0), (0, 3)),
    ((0, 3, 4), (4, 3)),
    ((3, 4), (0, 4, 3)),
    ((2, 3, 0), (0, 3)),
    ((2, 3, 0), (2, 0, 3)),
    ((0, 3, 4), (1, 4, 3)),
    ((5, 0, 3, 4), (1, 4, 3)),
    ((0,), (0,)),
    ((0,), (0, 3)),
    ((3, 0), (0,)),
    ((2, 0, 4), (4,)),
    ((4,), (2, 4, 0)),
]


def add_cases(op: Callable[..., Any], *inputs: Make) -> list[Case]:
    """The cases that ``addmm`` and its relatives share."""
    name = op.__name__
    complex_inputs = [lambda device, m=m: torch.complex(m(device), 0.5 - m(device)) for m in inputs]

    def weighted(beta: complex, alpha: complex) -> Callable[..., Any]:
        return lambda *a: op(*a, beta=beta, alpha=alpha)

    return [
        case(name, op, *inputs),
        case(name, weighted(0.5, -2), *inputs, label="beta-alpha"),
        case(name, weighted(0, 1.5), *inputs, label="beta-0"),
        case(name, weighted(2, 0), *inputs, label="alpha-0"),
        case(name, op, values(1.5), *inputs[1:], label="0-d-input"),
        case(name, weighted(0.5 - 1j, 2 + 3j), *complex_inputs, label="complex"),
        case(name, lambda i, *a: getattr(i * 1, f"{name}_")(*a, alpha=2), *inputs, label="in-place"),
    ]


CASES = [
    *(case("matmul", torch.matmul, rand(*a), rand(*b, seed=1), label=f"{a}x{b}") for a, b in PAIRS),
    *(
        case("matmul", torch.matmul, rand(*a, dtype=C), rand(*b, seed=1, dtype=C), label=f"complex-{a}x{b}")
        for a, b in PAIRS
        if len(a) < 4 and len(b) < 4
    ),
    *(case("matmul", torch.matmul, rand(*a), rand(*b, seed=1), label=f"empty-{a}x{b}") for a, b in EMPTY),
    case("matmul", lambda a, b: a @ b, rand(3, 4), rand(4, 2), label="operator"),
    case("matmul", lambda a: a @ a, rand(3, 3), label="one-tensor-twice"),
    case("matmul", lambda a: a.mT @ a, rand(2, 3, 4), label="gram"),
    case("matmul", lambda a, b: a.__rmatmul__(b), rand(4, 2), rand(3, 4), label="reflected"),
    case("matmul", lambda a, b: torch.linalg.matmul(a, other=b), rand(3, 4), rand(4, 2), label="keyword"),
    case("matmul", torch.matmul, transposed(rand(2, 3, 4)), transposed(rand(4, 3)), label="transposed"),
    case("matmul", torch.matmul, expanded(rand(3, 4), 2, 3, 4), expanded(rand(4, 1), 4, 3), label="expanded"),
    case("matmul", torch.matmul, transposed(rand(5, 1, 3, 4)), transposed(rand(2, 4, 3)), label="transposed-batches"),
    case("mm", torch.mm, rand(3, 4), rand(4, 2)),
    case("mm", torch.mm, rand(3, 4, dtype=C), rand(4, 2, dtype=C), label="complex"),
    case("mm", torch.mm, transposed(rand(3, 4)), expanded(rand(4, 1), 4, 2), label="strided"),
    case("mm", torch.mm, rand(3, 0), rand(0, 2), label="empty"),
    case("mm", lambda a, b: a.mm(mat2=b), rand(3, 4), rand(4, 2), label="keyword"),
    case("bmm", torch.bmm, rand(2, 3, 4), rand(2, 4, 2)),
    case("bmm", torch.bmm, rand(2, 3, 4, dtype=C), rand(2, 4, 2, dtype=C), label="complex"),
    case("bmm", torch.bmm, transposed(rand(2, 3, 4)), expanded(rand(4, 2), 2, 4, 2), label="strided"),
    case("bmm", torch.bmm, rand(0, 3, 4), rand(0, 4, 2), label="empty"),
    case("mv", torch.mv, rand(3, 4), rand(4)),
    case("mv", torch.mv, rand(3, 4, dtype=C), rand(4, dtype=C), label="complex"),
    case("mv", torch.mv, rand(3, 0), rand(0), label="empty"),
    case("dot", torch.dot, rand(4), rand(4, seed=1)),
    case("dot", torch.dot, rand(4, dtype=C), rand(4, seed=1, dtype=C), label="complex"),
    case("dot", torch.dot, rand(0), rand(0), label="empty"),
    case("vdot", torch.vdot, rand(4), rand(4, seed=1)),
    case("vdot", torch.vdot, rand(4, dtype=C), rand(4, seed=1, dtype=C), label="complex"),
    case("linalg_vecdot", torch.linalg.vecdot, rand(3, 4), rand(2, 1, 4), label="broadcast"),
    case("linalg_vecdot", torch.linalg.vecdot, rand(3, 4, dtype=C), rand(2, 1, 4, dtype=C), label="complex"),
    case("linalg_vecdot", lambda a, b: torch.linalg.vecdot(a, b, dim=0), rand(3, 4), rand(3, 1), label="dim"),
    case("linalg_vecdot", torch.linalg.vecdot, rand(3, 4), rand(3, 1), label="contracted-with-length-1"),
    case("linalg_vecdot", torch.linalg.vecdot, rand(1), rand(2, 4), label="length-1-of-lower-rank"),
    case("linalg_vecdot", lambda a, b: torch.linalg.vecdot(a, b, dim=0), rand(4), rand(3, 4), label="dim-of-one-alone"),
    case("outer", torch.outer, rand(3), rand(4)),
    case("outer", torch.outer, rand(3, dtype=C), rand(4, dtype=C), label="complex"),
    case("outer", torch.outer, rand(3), rand(4, dtype=C), label="real-complex"),
    case("outer", torch.ger, rand(0), rand(4), label="ger-empty"),
    case("inner", torch.inner, rand(4), rand(4, seed=1)),
    case("inner", torch.inner, rand(2, 3, 4), rand(5, 4), label="ranks-3-2"),
    case("inner", torch.inner, rand(), rand(5, 4), label="0-d"),
    case("inner", torch.inner, rand(2, 4, dtype=C), rand(4, dtype=C), label="complex"),
    case("linalg_cross", torch.linalg.cross, rand(2, 3), rand(2, 3, seed=1)),
    case("linalg_cross", torch.linalg.cross, rand(1, 3, dtype=C), rand(2, 3, dtype=C), label="complex-broadcast"),
    case("linalg_cross", lambda a, b: torch.linalg.cross(a, b, dim=0), rand(3, 1, 2), rand(3, 4, 2), label="dim"),
    case("cross", lambda a, b: torch.cross(a, b, dim=1), rand(3, 3), rand(3, 3, seed=1), label="dim"),
    case("cross", torch.cross, rand(2, 3, 3), rand(2, 3, 3, seed=1), label="first-axis-of-length-3"),
    *(
        case("linear", F.linear, rand(*shape), rand(5, 4, seed=1), rand(5), label=f"input-{shape}")
        for shape in [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 4), (2, 2, 2, 3, 4), (0, 4), (2, 0, 4)]
    ),
    case("linear", F.linear, rand(2, 3, 4), rand(5, 4), label="no-bias"),
    case("linear", F.linear, rand(2, 3, 4, dtype=C), rand(5, 4, dtype=C), rand(5, dtype=C), label="complex"),
    case("linear", F.linear, transposed(rand(2, 3, 4)), transposed(rand(5, 4)), rand(5), label="transposed"),
    case("linear", F.linear, expanded(rand(3, 4), 2, 3, 4), expanded(rand(4), 5, 4), rand(5), label="expanded"),
    case("linear", F.linear, rand(2, 3, 4), rand(4, seed=1), label="weight-of-rank-1"),
    case("linear", F.linear, rand(3, 0), rand(5, 0), rand(5), label="no-features"),
    case("linear", lambda x, w, b: F.linear(x, bias=b, weight=w), rand(3, 4), rand(5, 4), rand(5), label="keyword"),
    case("bilinear", F.bilinear, rand(3, 4), rand(3, 5), rand(2, 4, 5), rand(2)),
    case("bilinear", F.bilinear, rand(2, 3, 4), rand(2, 3, 5), rand(2, 4, 5), label="rank-3-no-bias"),
    case("bilinear", F.bilinear, rand(4), rand(5), rand(2, 4, 5), rand(2), label="rank-1"),
    case("bilinear", F.bilinear, rand(0, 4), rand(0, 5), rand(2, 4, 5), rand(2), label="empty"),
    *add_cases(torch.addmm, rand(3, 2), rand(3, 4), rand(4, 2)),
    *add_cases(torch.addmv, rand(3), rand(3, 4), rand(4)),
    *add_cases(torch.addr, rand(3, 4), rand(3), rand(4)),
    *add_cases(torch.addbmm, rand(3, 2), rand(5, 3, 4), rand(5, 4, 2)),
    *add_cases(torch.baddbmm, rand(5, 3, 2), rand(5, 3, 4), rand(5, 4, 2)),
    case("addmm", torch.addmm, rand(2), rand(3, 4), rand(4, 2), label="row-input"),
    case("addmm", torch.addmm, rand(3, 1), rand(3, 0), rand(0, 2), label="empty"),
    case("addmm", torch.addmm, rand(3, 2), transposed(rand(3, 4)), transposed(rand(4, 2)), label="transposed"),
    case("baddbmm", torch.baddbmm, rand(3, 1), rand(0, 3, 4), rand(0, 4, 2), label="empty"),
    case("chain_matmul", torch.chain_matmul, rand(3, 4), rand(4, 2), rand(2, 5)),
    case("linalg_multi_dot", lambda *m: torch.linalg.multi_dot(m), rand(3, 4), rand(4, 2), rand(2, 5), rand(5, 1)),
    case("linalg_multi_dot", lambda *m: torch.linalg.multi_dot(m), rand(3), rand(3, 2), rand(2), label="vector-ends"),
    case(
        "linalg_multi_dot",
        lambda *m: torch.linalg.multi_dot(m),
        rand(3, 4, dtype=C),
        rand(4, 2, dtype=C),
        label="complex",
    ),
    *(
        case("linalg_matrix_power", lambda a, n=n: torch.linalg.matrix_power(a, n), rand(2, 3, 3), label=str(n))
        for n in (-3, -1, 0, 1, 2, 3, 6)
    ),
    case("linalg_matrix_power", lambda a: a.matrix_power(5), rand(3, 3, dtype=C), label="complex-method"),
    case("linalg_matrix_exp", torch.linalg.matrix_exp, rand(2, 3, 3)),
    case("linalg_matrix_exp", torch.matrix_exp, rand(3, 3, dtype=C), label="complex"),
    case("linalg_matrix_exp", torch.matrix_exp, rand(0, 3, 3), label="empty"),
    case("tensordot", lambda a, b: torch.tensordot(a, b, dims=1), rand(3, 4), rand(4, 2)),
    case("tensordot", lambda a, b: torch.tensordot(a, b, dims=2), rand(2, 3, 4), rand(3, 4, 5), label="two-dims"),
    case("tensordot", lambda a, b: torch.tensordot(a, b, dims=0), rand(2, 3), rand(4), label="outer"),
    case(
        "tensordot", lambda a, b: torch.tensordot(a, b, ([2, 0], [1, 2])), rand(2, 3, 4), rand(5, 4, 2), label="crossed"
    ),
    case(
        "tensordot", lambda a, b: torch.tensordot(a, b, ([-1], [0])), rand(2, 1), rand(4, 3), label="left-of-length-1"
    ),
    case(
        "tensordot", lambda a, b: torch.tensordot(a, b, ([-1], [0])), rand(2, 4), rand(1, 3), label="right-of-length-1"
    ),
    case("tensordot", lambda a, b: torch.tensordot(a, b, dims=1), rand(3, 0), rand(0, 2), label="empty"),
    case(
        "tensordot",
        lambda a, b: torch.tensordot(a, b, dims=1),
        rand(3, 4, dtype=C),
        rand(4, 2, dtype=C),
        label="complex",
    ),
    case("tensordot", lambda a, b: torch.tensordot(a, b, 3), rand(2, 2, 3, 2, 2), rand(3, 2, 2, 2, 2), label="rank-5"),
    case("kron", torch.kron, rand(2, 3), rand(4, 2)),
    case("kron", torch.kron, rand(3), rand(2, 4), label="ranks-1-2"),
    case("kron", torch.kron, rand(2, 1, 3), rand(2), label="ranks-3-1"),
    case("kron", torch.kron, rand(), rand(2, 4), label="0-d"),
    case("kron", torch.kron, rand(2, 0), rand(2, 4), label="empty"),
    case("kron", torch.kron, rand(2, 2, dtype=C), rand(3, 2, dtype=C), label="complex"),
    case("kron", torch.kron, rand(2, 2, dtype=C), rand(3, 2), label="complex-real"),
]


@pytest.mark.filterwarnings("ignore:Using torch.cross without")
@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@given(
    left=st.lists(st.integers(1, 3), max_size=3),
    right=st.lists(st.integers(1, 3), max_size=3),
    m=st.integers(0, 3),
    k=st.integers(0, 3),
    n=st.integers(0, 3),
)
def test_matmul_of_any_broadcastable_batches(left: list[int], right: list[int], m: int, k: int, n: int) -> None:
    # An axis that differs on both sides is broadcast from one.
    for i in range(1, min(len(left), len(right)) + 1):
        if left[-i] != right[-i]:
            left[-i] = 1
    run_case(
        case("matmul", torch.matmul, rand(*left, m, k), rand(*right, k, n, seed=1), second="differences"),
        torch.device("cpu"),
    )


def test_beta_zero_keeps_nan_of_the_input_out(device: torch.device) -> None:
    x = tracer.track(torch.full((1, 1), math.nan, device=device), True)
    a = tracer.track(torch.full((1, 1), 2.0, device=device), True)
    b = tracer.track(torch.full((1, 1), 3.0, device=device), True)
    torch.addmm(x, a, b, beta=0).sum().backward()
    assert (x.grad.item(), a.grad.item(), b.grad.item()) == (0.0, 3.0, 2.0)


def test_beta_zero_keeps_an_infinite_gradient_out(device: torch.device) -> None:
    x = tracer.track(torch.zeros(2, 2, device=device), True)
    torch.addmm(x, torch.ones(2, 2), torch.ones(2, 2), beta=0).backward(torch.full((2, 2), math.inf))
    assert plain(x.grad).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_power_zero_has_a_zero_gradient(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 2, device=device), True)
    (grad,) = torch.autograd.grad(torch.linalg.matrix_power(x, 0).sum(), x, materialize_grads=True)
    assert plain(grad).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_first_power_is_a_copy(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 2, device=device), True)
    assert torch.linalg.matrix_power(x, 1).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("op", [torch.matmul, torch.mm, F.linear], ids=lambda op: op.__name__)
def test_product_with_a_constant_keeps_the_constant_alone(op: Callable[..., Any], device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 2, device=device), True)
    weight = torch.ones(2, 2, device=device)
    (kept,) = [k for k in op(x, weight)._node.saved if isinstance(k, torch.Tensor)]
    assert kept.data_ptr() == weight.data_ptr()


def heads(qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of each head: parts of one tensor, whose batch axes are no one axis of its memory."""
    return qkv.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)


#: Both sides of a product, made of one tensor of shape (2, 5, 24): parts of it whose batch axes are one axis of the memory, and not.
SIDES: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "heads": lambda x: (heads(x)[0], heads(x)[1].mT),
    "heads of one sample": lambda x: (heads(x)[0][:1], heads(x)[1][:1].mT),
    "one head": lambda x: (heads(x)[0][:, :1], heads(x)[1][:, :1].mT),
    "contiguous": lambda x: (x.view(2, 5, 4, 6), x.view(2, 5, 6, 4)),
    "transposed": lambda x: (x.view(2, 5, 4, 6).mT, x.view(2, 5, 4, 6)),
    "rows cut off": lambda x: (x.view(2, 5, 4, 6)[:, :, 1:], x.view(2, 5, 4, 6)[:, :, 1:].mT),
    "batches cut off": lambda x: (x.view(2, 5, 4, 6)[:, 1:], x.view(2, 5, 6, 4)[:, 1:]),
    "three axes": lambda x: (x[:, 1:], x[:, 1:].mT),
    "five axes": lambda x: (x.view(2, 5, 2, 4, 3).transpose(1, 2), x.view(2, 5, 2, 3, 4).transpose(1, 2)),
}  # fmt: skip


def outcome(sides: Callable[..., tuple[torch.Tensor, torch.Tensor]], x: torch.Tensor, written: int | None) -> Any:
    """The gradient of a product of parts of two tensors; None where one of them was ``written`` into and its part was kept itself."""
    wholes = x * 1, x * 2
    loss = (sides(wholes[0])[0] @ sides(wholes[1])[1]).sin().sum()
    if written is not None:
        wholes[written].zero_()
    try:
        loss.backward()
    except RuntimeError:
        return None
    return plain(x.grad)


@pytest.mark.parametrize("written", [None, 0, 1], ids=["", "left written", "right written"])
@pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES)
def test_a_side_that_the_product_copies_can_be_written_into_as_in_torch(
    sides: Callable[..., Any], written: int | None, device: torch.device
) -> None:
    x = torch.linspace(-1, 1, 240, dtype=torch.float64, device=device).view(2, 5, 24)
    native = outcome(sides, x.clone().requires_grad_(), written)
    ours = outcome(sides, tracer.track(x.clone(), True), written)
    assert (native is None) == (ours is None)
    assert native is None or torch.equal(ours, native)


def test_left_side_is_copied_where_the_right_one_is_broadcast(device: torch.device) -> None:
    qkv = tracer.track(torch.rand(2, 5, 24, device=device), True) * 1
    queries = heads(qkv)[0]
    product = queries @ torch.rand(2, 4, 6, device=device)
    product = product + queries @ tracer.track(torch.rand(2, 4, 6, device=device), True)
    qkv.zero_()
    product.sum().backward()


def test_product_of_heads_does_not_keep_what_they_are_parts_of(device: torch.device) -> None:
    qkv = tracer.track(torch.rand(2, 5, 24, device=device), True) * 1
    query, key, _ = heads(qkv)
    storages = {t.untyped_storage().data_ptr() for t in (query * 2 @ key.mT)._node.saved if isinstance(t, torch.Tensor)}
    assert len(storages) == 2
    assert qkv.untyped_storage().data_ptr() not in storages


def test_product_of_copied_heads_is_differentiated_twice(device: torch.device) -> None:
    def product(qkv: torch.Tensor) -> torch.Tensor:
        query, key, value = heads(qkv)
        return (query @ key.mT).tanh() @ value

    x = tracer.track(torch.rand(2, 3, 24, dtype=torch.float64, device=device), True)
    assert tracer.gradcheck(product, (x,))
    assert tracer.gradgradcheck(product, (x,))


def test_weight_gradient_of_a_batch_makes_no_product_per_batch(device: torch.device) -> None:
    x = tracer.track(torch.ones(7, 2, 3, device=device), False)
    weight = tracer.track(torch.ones(3, 5, device=device), True)
    with torch.profiler.profile(record_shapes=True) as profile:
        (x @ weight).sum().backward()
    assert not [e.key for e in profile.key_averages() if e.key == "aten::bmm"]


def test_product_under_autocast_has_the_gradient_dtype_of_its_inputs(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 3, device=device), True)
    weight = tracer.track(torch.full((3, 2), 2.0, device=device), True)
    with torch.autocast(device.type, torch.bfloat16):
        y = x @ weight
    y.backward(torch.ones_like(y))
    assert y.dtype == torch.bfloat16
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    assert plain(x.grad).tolist() == [[4.0] * 3] * 2


def test_chain_of_matrices_is_split_where_multiplying_is_cheapest() -> None:
    # 10x100, 100x5, 5x50: the first two first costs 7,500 multiplications, the last two first 75,000.
    assert cheapest_splits([10, 100, 5, 50])[0, 2] == 1
    assert cheapest_splits([50, 5, 100, 10])[0, 2] == 0
