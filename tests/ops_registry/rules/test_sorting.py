"""Rules of ``ops_registry/rules/sorting.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import Case, case, rand, run_case, values
from support.leaves import tracked

TIES = values([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])


def selecting_backward(shape: tuple[int, ...], dim: int, indices: Any, keepdim: bool) -> Callable[..., torch.Tensor]:
    def call(grad: torch.Tensor) -> torch.Tensor:
        places = torch.tensor(indices, device=grad.device)
        return torch.ops.aten.value_selecting_reduction_backward(grad, dim, places, shape, keepdim)

    return call


CASES = [
    case("value_selecting_reduction_backward", selecting_backward((2, 3), 1, [2, 0], False), rand(2)),
    case(
        "value_selecting_reduction_backward",
        selecting_backward((2, 3), 0, [[1, 0, 1]], True),
        rand(1, 3),
        label="keepdim",
    ),
    case("value_selecting_reduction_backward", selecting_backward((), 0, 0, False), rand(), label="0-d"),
    case("sort", torch.sort, rand(3, 4)),
    case("sort", lambda x: x.sort(0, True), rand(3, 4), label="positional"),
    case("sort", lambda x: torch.sort(x, dim=-2, descending=True), rand(2, 3, 4), label="keywords"),
    case("sort", lambda x: torch.sort(x, axis=0), rand(3, 4), label="numpy-names"),
    case("sort", lambda x: x.t().sort(1)[0], rand(3, 4), label="transposed"),
    case("sort", torch.sort, rand(), label="0-d"),
    case("sort", torch.sort, rand(0, 3), label="empty"),
    case("sort", lambda x: x.sort(2), rand(2, 1, 3, 2, 2), label="rank-5"),
    case("sort.stable", lambda x: torch.sort(x, stable=True), TIES, label="ties", differences=False),
    case("sort.stable", lambda x: x.sort(stable=True, dim=0, descending=True), rand(3, 4), label="keywords"),
    case("sort.stable", lambda x: torch.ops.aten.sort.stable(x, stable=True, dim=1), rand(3, 4), label="overload"),
    case("msort", torch.msort, rand(3, 4)),
    case("msort", torch.msort, rand(), label="0-d"),
    case("topk", lambda x: torch.topk(x, 2), rand(3, 4)),
    case("topk", lambda x: x.topk(2, 0, False), rand(3, 4), label="smallest-along-dim"),
    case("topk", lambda x: x.topk(k=2, dim=-1, sorted=False), rand(2, 3, 4), label="keywords"),
    case("topk", lambda x: x.topk(1), rand(), label="0-d"),
    case("topk", lambda x: x.topk(0), rand(3, 4), label="none"),
    case("topk", lambda x: x.topk(2, 3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("kthvalue", lambda x: torch.kthvalue(x, 2), rand(3, 4)),
    case("kthvalue", lambda x: x.kthvalue(3, 0, keepdim=True), rand(3, 4), label="dim-keepdim"),
    case("kthvalue", lambda x: x.kthvalue(1), rand(), label="0-d"),
    case("kthvalue", lambda x: x.kthvalue(2, 3), rand(2, 1, 2, 3, 2), label="rank-5"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_sort_sends_each_cotangent_back_to_where_the_value_was(device: torch.device) -> None:
    x = tracked([3.0, 1.0, 2.0], device)
    x.sort()[0].backward(torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64, device=device))
    assert x.grad.tolist() == [30.0, 10.0, 20.0]


def test_elements_outside_topk_get_zero(device: torch.device) -> None:
    x = tracked([3.0, 1.0, 2.0], device)
    x.topk(2)[0].sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0]


def test_argsort_gives_plain_integers(device: torch.device) -> None:
    assert type(tracked([2.0, 1.0], device).argsort()) is torch.Tensor
