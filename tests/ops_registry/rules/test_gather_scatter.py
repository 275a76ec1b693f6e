"""Rules of ``ops_registry/rules/gather_scatter.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, rand, run_case, values
from support.index_calls import on, squared
from support.leaves import leaf
from support.results import gradient

import tracer
from ops_registry.errors import UnsupportedCallError

COMPLEX = torch.complex128
aten = torch.ops.aten


PAIRS = [[0, 2, 2], [1, 0, 2]]

CASES = [
    case("gather", squared("gather", 1, [[0, 0], [2, 1]]), rand(2, 3)),
    case("gather", squared("gather", -1, [[3, 3, 0]]), rand(2, 4), label="short-index"),
    case("gather", squared("gather", 0, [[[[[1]]]], [[[[1]]]]]), rand(2, 1, 2, 1, 2), label="rank-5"),
    case("gather", lambda x: torch.gather(x, dim=0, index=on(x.device, 0)) ** 2, rand(), label="0-d"),
    case("gather", squared("gather", 1, [[1, 1]]), rand(1, 2, dtype=COMPLEX), label="complex"),
    case(
        "gather",
        lambda x: x.gather(0, torch.zeros(0, 3, dtype=torch.int64, device=x.device)) ** 2,
        rand(2, 3),
        label="nothing",
    ),
    case("take_along_dim", squared("take_along_dim", [[0, 0], [2, 1]], 1), rand(2, 3)),
    case("take_along_dim", squared("take_along_dim", [[1, -1]], dim=1), rand(3, 4), label="broadcast-index-negative"),
    case("take_along_dim", squared("take_along_dim", [[1, 1], [0, -1]], dim=-1), rand(1, 4), label="broadcast-input"),
    case("take_along_dim", squared("take_along_dim", [5, 0, 3, 0]), rand(2, 3), label="flat"),
    case(
        "take_along_dim",
        lambda x: torch.take_along_dim(x, x.detach().real.argsort(1), 1) ** 2,
        rand(2, 3, dtype=COMPLEX),
        label="complex",
    ),
    case("scatter_add", squared("scatter_add", 1, PAIRS, ...), rand(2, 3), rand(2, 3)),
    case("scatter_add", squared("scatter_add_", 1, PAIRS, ...), rand(2, 3), rand(2, 3), label="in-place"),
    case(
        "scatter_add",
        squared("scatter_add", 0, [[1, 1, 0]], src=...),
        rand(2, 3, dtype=COMPLEX),
        rand(1, 3, dtype=COMPLEX),
        label="complex",
    ),
    # torch raises where the source is larger than the index.
    case(
        "scatter_add",
        squared("scatter_add", 1, PAIRS, ...),
        rand(2, 3),
        rand(4, 5),
        torch_agrees=False,
        label="large-src",
    ),
    case("scatter.src", squared("scatter", 1, [[0, 2], [1, 0]], ...), rand(2, 3), rand(2, 2)),
    case("scatter.src", squared("scatter_", 1, [[0, 2], [1, 0]], ...), rand(2, 3), rand(2, 2), label="in-place"),
    case(
        "scatter.src",
        squared("scatter", dim=1, index=torch.tensor([[2, 0]]), src=...),
        rand(2, 3),
        rand(1, 2),
        label="keywords",
    ),
    case(
        "scatter.src",
        squared("scatter", 0, [[1, 0]], ...),
        rand(2, 3),
        rand(2, 3),
        torch_agrees=False,
        label="large-src",
    ),
    case("scatter.value", squared("scatter", 1, [[0, 2], [1, 1]], 3.0), rand(2, 3)),
    case("scatter.value", squared("scatter_", 1, [[0, 2], [1, 1]], value=3.0), rand(2, 3), label="in-place-keyword"),
    *[
        # torch has no derivative of scatter with reduce=.
        case(rule, function, *inputs, torch_agrees=False, second="differences", label=label)
        for rule, label, function, *inputs in [
            ("scatter.reduce", "add", squared("scatter", 1, PAIRS, ..., reduce="add"), rand(2, 3), rand(2, 3)),
            (
                "scatter.reduce",
                "multiply",
                squared("scatter_", 1, PAIRS, ..., reduce="multiply"),
                rand(2, 3),
                rand(2, 3),
            ),
            ("scatter.value_reduce", "add", squared("scatter", 1, PAIRS, 2.0, reduce="add"), rand(2, 3)),
            ("scatter.value_reduce", "multiply", squared("scatter", 1, PAIRS, 2.5, reduce="multiply"), rand(2, 3)),
            ("scatter.value_reduce", "in-place", squared("scatter_", 1, PAIRS, 2.5, reduce="multiply"), rand(2, 3)),
        ]
    ],
    *[
        case(
            "scatter_reduce",
            squared(name, 1, PAIRS, ..., mode, include_self=own),
            rand(2, 3, low=0.5),
            rand(2, 3, low=0.5, seed=1),
            label=f"{name}-{mode}-{own}",
        )
        for name in ("scatter_reduce", "scatter_reduce_")
        for mode in ("sum", "mean", "prod", "amax", "amin")
        for own in (True, False)
    ],
    case(
        "scatter_reduce",
        squared("scatter_reduce", 0, [1, 1], ..., "prod"),
        values([0.0, 0.0]),
        values([0.0, 3.0]),
        label="zeros",
    ),
    case(
        "scatter_reduce",
        squared("scatter_reduce", 0, [1, 1, 1], ..., "prod"),
        values([2.0, 3.0]),
        values([0.0, 3.0, 0.0]),
        second=False,  # refused: see the test of the error
        label="two-zeros",
    ),
    case(
        "scatter_reduce",
        squared("scatter_reduce", 0, [0, 0, 0], ..., "amax"),
        values([4.0, 1.0]),
        values([2.0, 2.0, 1.0]),
        differences=False,
        label="ties",
    ),
    case(
        "scatter_reduce",
        squared("scatter_reduce", 0, [[[[[0]]]]], ..., "mean"),
        rand(2, 1, 2, 1, 2),
        rand(1, 1, 1, 1, 1),
        label="rank-5",
    ),
    case(
        "scatter_reduce",
        squared("scatter_reduce", 0, [1, 1], ..., "prod"),
        rand(2),
        rand(4),
        torch_agrees=False,
        label="large-src",
    ),
    case("take", squared("take", [[5, 0], [-1, 0]]), rand(2, 3)),
    case(
        "take",
        lambda x: torch.take(x.t(), on(x.device, [1, 1])) ** 2,
        rand(2, 3, dtype=COMPLEX),
        label="transposed-complex",
    ),
    case("take", lambda x: x.take(on(x.device, 0)) ** 2, rand(), label="0-d"),
    case("put", squared("put", [[5, 0], [-2, 1]], ...), rand(2, 3), rand(2, 2)),
    case("put", squared("put", [5, 5], ..., accumulate=True), rand(2, 3), rand(2), label="accumulate"),
    case("put", squared("put_", [5, 1], ..., True), rand(2, 3), rand(2), label="in-place-accumulate"),
    case(
        "put",
        squared("put_", [5, 1], ...),
        rand(2, 3, dtype=COMPLEX),
        rand(1, 2, dtype=COMPLEX),
        label="in-place-complex",
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


WRITES = {
    "put_": lambda b, v: b.put_(torch.tensor([0, 1]), v),
    "scatter_": lambda b, v: b.scatter_(0, torch.tensor([0, 1]), v),
    "scatter_add_": lambda b, v: b.scatter_add_(0, torch.tensor([0, 0]), v),
    "scatter_reduce_": lambda b, v: b.scatter_reduce_(0, torch.tensor([0, 0]), v, "sum"),
}


@pytest.mark.parametrize("name", WRITES)
def test_tensor_written_in_place_into_a_plain_buffer_gets_its_gradient(name: str) -> None:
    buffer, v = torch.zeros(3, dtype=torch.float64), leaf(1, 2)
    assert WRITES[name](buffer, v) is buffer
    assert gradient(buffer, v) == [1, 1]


@pytest.mark.parametrize("name", WRITES)
def test_tensor_written_in_place_into_a_tracked_tensor_that_wants_no_gradient_gets_its_own(name: str) -> None:
    buffer, v = tracer.tensor([0.0, 0.0, 0.0], dtype=torch.float64), leaf(1, 2)
    WRITES[name](buffer, v)
    assert gradient(buffer, v) == [1, 1]


def test_scatter_add_of_two_into_one_place_gives_both_the_gradient_of_that_place() -> None:
    # pytorch/pytorch#146299
    x, s = leaf(1, 2), leaf(3, 4)
    y = x.scatter_add(0, torch.tensor([1, 1]), s) * torch.tensor([2.0, 3.0])
    assert gradient(y, x) == [2, 3]
    assert gradient(y, s) == [3, 3]


def test_scatter_gives_nothing_to_the_part_of_the_source_beyond_the_index() -> None:
    x, s = leaf(1, 2), leaf(3, 4, 5)
    y = x.scatter(0, torch.tensor([1]), s)
    assert gradient(y, x) == [1, 0]
    assert gradient(y, s) == [1, 0, 0]


def test_amax_shares_ties_evenly_between_input_and_source() -> None:
    x, s = leaf(3, 0), leaf(3, 3, 1)
    y = x.scatter_reduce(0, torch.tensor([0, 0, 0]), s, "amax")
    assert torch.allclose(torch.tensor(gradient(y, x)), torch.tensor([1 / 3, 1.0]))
    assert torch.allclose(torch.tensor(gradient(y, s)), torch.tensor([1 / 3, 1 / 3, 0.0]))


def test_amax_does_not_share_with_an_input_that_is_left_out() -> None:
    x, s = leaf(3, 0), leaf(3, 1)
    y = x.scatter_reduce(0, torch.tensor([0, 0]), s, "amax", include_self=False)
    assert gradient(y, s) == [1, 0]
    assert gradient(y, x) == [0, 1]


def test_product_with_one_zero_gives_the_zero_the_product_of_the_others() -> None:
    x, s = leaf(5), leaf(0, 3)
    y = x.scatter_reduce(0, torch.tensor([0, 0]), s, "prod")
    assert gradient(y, s) == [15, 0]
    assert gradient(y, x) == [0]


def test_second_derivative_of_a_product_where_two_zeros_meet_raises() -> None:
    s = leaf(0, 0, 3)
    y = torch.ones(1, dtype=torch.float64).scatter_reduce(0, torch.tensor([0, 0, 0]), s, "prod")
    with pytest.raises(UnsupportedCallError, match="two zeros"):
        torch.autograd.grad(y.sum(), s, create_graph=True)


def test_scatter_multiplies_once_for_each_time_that_a_place_is_named() -> None:
    x = leaf(1, 1)
    assert gradient(x.scatter(0, torch.tensor([0, 0]), 3.0, reduce="multiply"), x) == [9, 1]


def test_scatter_of_a_value_that_wants_a_gradient_raises() -> None:
    with pytest.raises(UnsupportedCallError, match="src="):
        torch.scatter(leaf(1, 2), 0, torch.tensor([0]), value=tracer.tensor(2.0, requires_grad=True))


def test_gather_with_sparse_grad_gives_a_sparse_gradient() -> None:
    x = tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    torch.gather(x, 1, torch.tensor([[1, 1]]), sparse_grad=True).sum().backward()
    assert x.grad is not None
    assert x.grad.layout is torch.sparse_coo
    assert x.grad.to_dense().tolist() == [[0, 2], [0, 0]]


def test_gather_keeps_the_index_and_no_value() -> None:
    y = leaf(1, 2).gather(0, torch.tensor([0]))
    assert y.grad_fn is not None
    assert [k.dtype for k in y.grad_fn.saved or () if isinstance(k, torch.Tensor)] == [torch.int64]


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_an_index_that_is_a_number_takes_the_first_of_a_source(reduce: str) -> None:
    source = tracer.track(torch.tensor([3.0, 4.0, 5.0]), True)
    torch.tensor(1.0).scatter_reduce(0, torch.tensor(0), source, reduce, include_self=False).backward()
    assert source.grad.tolist() == [1.0, 0.0, 0.0]
