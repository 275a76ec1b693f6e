"""Rules of ``ops_registry/rules/embedding.py``."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, plain, rand, run_case

import tracer


def long(x: torch.Tensor, values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=x.device)


def bag(mode: int, *, offsets: Any = (0, 3, 3), **options: Any) -> Any:
    """Three bags out of five rows, the second empty."""

    def function(w: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        per_sample = weights[0] if weights else None
        indices = long(w, [1, 4, 1, 0, 2])
        given = {
            "scale_grad_by_freq": False,
            "sparse": False,
            "include_last_offset": False,
            "padding_idx": None,
            **options,
        }
        return torch.embedding_bag(w, indices, long(w, offsets), mode=mode, per_sample_weights=per_sample, **given)[0]

    return function


def dense_backward(padding_idx: int, scale: bool) -> Any:
    return lambda g: torch.ops.aten.embedding_dense_backward(g, long(g, [[1, 0], [1, 2]]), 4, padding_idx, scale) ** 2


CASES = [
    case("embedding", lambda w: torch.embedding(w, long(w, [[1, 0], [1, 3]])) ** 2, rand(4, 3)),
    case(
        "embedding",
        lambda w: F.embedding(long(w, [1, 0, 1]), w, padding_idx=1) ** 2,
        rand(4, 3),
        differences=False,
        label="padding",
    ),
    case(
        "embedding",
        lambda w: F.embedding(long(w, [1, 0, 1]), w, padding_idx=-1) ** 2,
        rand(4, 3),
        label="padding-from-the-end",
    ),
    # torch's second derivative leaves out the scale.
    case(
        "embedding",
        lambda w: F.embedding(long(w, [1, 0, 1]), w, scale_grad_by_freq=True),
        rand(4, 3),
        second="differences",
        differences=False,
        label="scaled",
    ),
    case("embedding", lambda w: torch.embedding(w, long(w, 2)) ** 2, rand(4, 3), label="0-d-index"),
    # torch's second derivative fails to reshape nothing.
    case(
        "embedding", lambda w: torch.embedding(w, long(w, [])) ** 2, rand(4, 3), second="differences", label="nothing"
    ),
    case("embedding", lambda w: torch.embedding(w.t(), indices=long(w, [2, 2])) ** 2, rand(4, 3), label="transposed"),
    case("embedding", lambda w: torch.embedding(w, long(w, [[[[1], [1]]]])) ** 2, rand(4, 3), label="rank-5"),
    case("embedding_dense_backward", dense_backward(-1, False), rand(2, 2, 3)),
    case("embedding_dense_backward", dense_backward(1, False), rand(2, 2, 3), label="padding"),
    case(
        "embedding_dense_backward",
        dense_backward(-1, True),
        rand(2, 2, 3),
        torch_agrees=False,
        second="differences",
        label="scaled",
    ),
    # torch has no second derivative of embedding_bag.
    *[case("embedding_bag", bag(m), rand(5, 3), second="differences", label=f"mode-{m}") for m in range(3)],
    *[
        case("embedding_bag", bag(m, padding_idx=1), rand(5, 3), second="differences", label=f"padding-mode-{m}")
        for m in range(3)
    ],
    case(
        "embedding_bag",
        bag(0, offsets=(0, 2, 5), include_last_offset=True),
        rand(5, 3),
        second="differences",
        label="last-offset",
    ),
    case("embedding_bag", bag(0), rand(5, 3), rand(5), second="differences", label="weights"),
    case(
        "embedding_bag",
        lambda w, p: bag(0)(w, p[::2]),
        rand(5, 3),
        rand(10),
        second="differences",
        label="strided-weights",
    ),
    case("embedding_bag", bag(0, padding_idx=1), rand(5, 3), rand(5), second="differences", label="weights-padding"),
    case(
        "embedding_bag",
        lambda w: F.embedding_bag(long(w, [[0, 1, 1], [3, 4, 3]]), w, mode="mean"),
        rand(5, 3),
        second="differences",
        label="rows",
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize(("mode", "padding"), itertools.product(range(3), (None, 1)))
def test_second_derivative_of_embedding_bag(mode: int, padding: int | None) -> None:
    w = tracer.track(rand(5, 3)(torch.device("cpu")), True)
    assert tracer_gradgradcheck(lambda w: bag(mode, padding_idx=padding)(w) ** 2, w)


def test_second_derivative_of_embedding_bag_with_weights() -> None:
    w = tracer.track(rand(5, 3)(torch.device("cpu")), True)
    p = tracer.track(rand(5)(torch.device("cpu")), True)
    assert tracer_gradgradcheck(lambda w, p: bag(0, padding_idx=1)(w, p) ** 2, w, p)


def tracer_gradgradcheck(function: Any, *inputs: torch.Tensor, step: float = 1e-6) -> bool:
    """The derivative of the gradient along a direction, against its central difference."""
    directions = [torch.linspace(-1, 1, i.numel(), dtype=i.dtype).view(i.shape) for i in inputs]

    def slope(shift: float, create_graph: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        moved = [tracer.track(i.detach() + shift * d, True) for i, d in zip(inputs, directions, strict=True)]
        grads = torch.autograd.grad(function(*moved).sum(), moved, create_graph=create_graph)
        return sum((g * g).sum() for g in grads), moved  # type: ignore[return-value]

    total, leaves = slope(0, True)
    exact = sum((g * d).sum() for g, d in zip(torch.autograd.grad(total, leaves), directions, strict=True))
    measured = (slope(step, False)[0] - slope(-step, False)[0]) / (2 * step)
    return torch.allclose(exact.detach(), measured.detach(), rtol=1e-5)  # type: ignore[union-attr]


def test_scaled_embedding_divides_by_how_often_a_row_is_asked_for_in_the_second_derivative_too() -> None:
    g = tracer.tensor([[3.0], [5.0], [7.0]], requires_grad=True)
    y = torch.ops.aten.embedding_dense_backward(g, torch.tensor([1, 0, 1]), 2, -1, True)
    (found,) = torch.autograd.grad(y.sum(), g)
    assert found.flatten().tolist() == [0.5, 1, 0.5]


def test_scaled_embedding_bag_divides_by_how_often_a_row_is_asked_for() -> None:
    # torch takes the count of another row for some of them: it gives row 2, which is asked for once, a half.
    w = tracer.track(torch.ones(5, 3), True)
    bag(0, scale_grad_by_freq=True)(w).sum().backward()
    assert w.grad is not None
    assert w.grad[:, 0].tolist() == [1, 1, 1, 0, 1]


SPARSE = {
    "embedding": lambda w, sparse: torch.embedding(w, long(w, [1, 0, 1]), sparse=sparse),
    "embedding-padding": lambda w, sparse: F.embedding(long(w, [1, 0, 1]), w, padding_idx=1, sparse=sparse),
    "embedding_bag-sum": lambda w, sparse: bag(0, sparse=sparse)(w),
    "embedding_bag-mean": lambda w, sparse: bag(1, sparse=sparse)(w),
    "embedding_bag-padding": lambda w, sparse: bag(0, sparse=sparse, padding_idx=4)(w, w.detach()[:, 0]),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradient_holds_the_same_values_as_the_dense_one(name: str) -> None:
    w = tracer.track(rand(5, 3)(torch.device("cpu")), True)
    dense, sparse = (torch.autograd.grad((SPARSE[name](w, s) ** 2).sum(), w)[0] for s in (False, True))
    assert sparse.layout is torch.sparse_coo
    torch.testing.assert_close(sparse.to_dense(), dense.detach())


def test_sparse_embedding_fills_grad_with_a_sparse_tensor() -> None:
    w = tracer.track(torch.ones(4, 2), True)
    torch.embedding(w, torch.tensor([1, 1]), sparse=True).sum().backward()
    assert w.grad is not None
    assert w.grad.layout is torch.sparse_coo
    assert w.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


def test_max_norm_shortens_the_rows_that_were_asked_for() -> None:
    w = tracer.track(torch.full((3, 4), 2.0), True)
    F.embedding(torch.tensor([1]), w, max_norm=1.0).sum().backward()
    assert w.detach()[1].norm().item() == pytest.approx(1.0, abs=1e-4)
    assert w.grad is not None
    assert w.grad[:, 0].tolist() == [0, 1, 0]


def test_one_hot_takes_no_gradient() -> None:
    assert not F.one_hot(tracer.tensor([0, 2])).requires_grad


def test_embedding_keeps_indices_and_not_the_table() -> None:
    y = torch.embedding(tracer.track(torch.ones(4, 2), True), torch.tensor([1]))
    assert y.grad_fn is not None
    assert [k.dtype for k in y.grad_fn.saved or () if isinstance(k, torch.Tensor)] == [torch.int64]


def test_strided_indices_offsets_and_weights_of_bags_are_read_in_order(device: torch.device) -> None:
    indices = torch.tensor([1, 0, 3, 0, 2, 0, 1, 0], device=device)[::2]
    offsets = torch.tensor([0, 9, 2, 9], device=device)[::2]
    table, by = rand(5, 3)(device), rand(8)(device)
    found = []
    for track in (True, False):
        weight, scale = (tracer.track(t.clone(), True) if track else t.clone().requires_grad_() for t in (table, by))
        out = F.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=scale[::2])
        out.square().sum().backward()
        found.append([plain(t) for t in (out, weight.grad, scale.grad)])
    torch.testing.assert_close(*found)
