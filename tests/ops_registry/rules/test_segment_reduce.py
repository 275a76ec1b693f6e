"""Rules of ``ops_registry/rules/segment_reduce.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import Case, case, cotangents, plain, rand, run_case, values

import tracer

REDUCTIONS = ("sum", "mean", "max", "min", "prod")


def reduced(reduce: str, lengths: Any = None, offsets: Any = None, **options: Any) -> Callable[..., torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        where = {
            name: torch.tensor(given, device=x.device)
            for name, given in (("lengths", lengths), ("offsets", offsets))
            if given is not None
        }
        return torch.segment_reduce(x, reduce, **where, **options)

    return function


# torch has no second derivative: differences decide.
CASES = [
    *(
        case("segment_reduce", reduced(r, [2, 0, 4], initial=i), rand(6), label=f"{r}-{i}", second="differences")
        for r, i in itertools.product(REDUCTIONS, (1, 0.5, 3.0))
    ),
    *(
        case("segment_reduce", reduced(r, [1, 5]), rand(6, 2, 3), label=f"{r}-rows", second="differences")
        for r in REDUCTIONS
    ),
    *(
        case(
            "segment_reduce",
            reduced(r, [[1, 3, 2], [4, 1, 1]], axis=1),
            rand(2, 6, 3),
            label=f"{r}-batch",
            second="differences",
        )
        for r in REDUCTIONS
    ),
    *(
        case(
            "segment_reduce",
            reduced(r, offsets=[[0, 3, 5], [1, 4, 6]], axis=-1),
            rand(2, 6),
            label=f"{r}-offsets",
            second="differences",
        )
        for r in REDUCTIONS
    ),
    case(
        "segment_reduce",
        reduced("sum", [2, 3], unsafe=True),
        rand(6),
        label="a-rest-that-is-in-no-segment",
        second="differences",
    ),
    case("segment_reduce", reduced("prod", [1, 2, 3]), values([0.0, 0.0, 2.0, 0.0, 3.0, 0.0]), second="differences"),
    case("segment_reduce", reduced("sum", [0, 0]), rand(0), label="empty", second="differences"),
    case("segment_reduce", reduced("prod", [4]), rand(4, 0), label="empty-rows", second="differences"),
    case(
        "segment_reduce",
        lambda x: reduced("mean", [1, 2])(x.permute(2, 0, 1)),
        rand(2, 2, 3),
        label="not-contiguous",
        second="differences",
    ),
    case("segment_reduce", reduced("max", [1, 2]), rand(3, 2, 1, 2, 2), label="rank-5", second="differences"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("weight", [6.0, -6.0])
def test_extremes_that_tie_share_evenly(weight: float, create_graph: bool, device: torch.device) -> None:
    """torch 2.13 gives a negative gradient to each of them."""
    x = tracer.track(values([2.0, 1.0, 2.0, 2.0, 5.0])(device), True)
    result = reduced("max", [4, 1])(x)
    weights = torch.tensor([weight, 1.0], dtype=torch.float64, device=device)
    (grad,) = torch.autograd.grad(result, x, weights, create_graph=create_graph)
    assert plain(grad).tolist() == [weight / 3, 0.0, weight / 3, weight / 3, 1.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_initial_value_beyond_all_elements_leaves_them_nothing(create_graph: bool, device: torch.device) -> None:
    x = tracer.track(values([1.0, 2.0])(device), True)
    (grad,) = torch.autograd.grad(reduced("max", [2], initial=3)(x).sum(), x, create_graph=create_graph)
    assert plain(grad).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_nan_is_the_extreme_of_its_segment(create_graph: bool, device: torch.device) -> None:
    x = tracer.track(values([1.0, float("nan"), 3.0])(device), True)
    (grad,) = torch.autograd.grad(reduced("min", [2, 1])(x).sum(), x, create_graph=create_graph)
    assert plain(grad).tolist() == [0.0, 1.0, 1.0]


def test_second_derivative_of_a_product_with_two_zeros_is_the_product_of_the_rest(device: torch.device) -> None:
    x = tracer.track(values([0.0, 0.0, 5.0])(device), True)
    (first,) = torch.autograd.grad(reduced("prod", [3])(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[0], x)
    assert plain(second).tolist() == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_recorded_gradient_is_that_of_the_kernel(reduce: str, device: torch.device) -> None:
    x = tracer.track(rand(6, 2)(device), True)
    result = reduced(reduce, [1, 0, 5], initial=1)(x)
    kernel, recorded = (
        torch.autograd.grad(result, x, cotangents([result])[0], create_graph=c, retain_graph=True)[0]
        for c in (False, True)
    )
    torch.testing.assert_close(plain(recorded), plain(kernel))
