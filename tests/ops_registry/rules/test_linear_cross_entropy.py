"""Rules of ``ops_registry/rules/linear_cross_entropy.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, cotangents, plain, rand, run_case

import tracer
from ops_registry.errors import UnsupportedCallError

pytestmark = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="new in torch 2.13")

NAMES = {
    "mean": "torch_nn._linear_cross_entropy_batch_chunked",
    "sum": "torch_nn._linear_cross_entropy_batch_chunked",
    "none": "torch_nn._linear_cross_entropy_batch_chunked_no_reduction",
}
TARGET = [2, 0, -100, 3, 3]


def loss(reduction: str, chunk: int | None = 2, weighted: bool = False, target: Any = TARGET) -> Callable[..., Any]:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        options = (
            None
            if chunk is None
            else torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk, allow_retain_graph=True)
        )
        classes = torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=x.dtype, device=x.device) if weighted else None
        labels = torch.tensor(target, device=x.device)
        return F.linear_cross_entropy(
            x, weight, labels, linear_bias=bias, weight=classes, reduction=reduction, options=options
        )

    return function


X, WEIGHT, BIAS = rand(5, 3), rand(4, 3), rand(4)

# torch has no second derivative, or takes the first one for a constant: differences decide.
CASES = (
    [
        *(
            case(
                NAMES[r],
                loss(r, chunk, weighted),
                X,
                WEIGHT,
                BIAS,
                label=f"{r}-{chunk}-{weighted}",
                second="differences",
            )
            for r in NAMES
            for chunk, weighted in ((2, False), (3, True), (8, False))
        ),
        *(case(NAMES[r], loss(r), X, WEIGHT, label=f"{r}-no-bias", second="differences") for r in NAMES),
        *(
            case(NAMES[r], loss(r, target=3), rand(3), WEIGHT, label=f"{r}-one-row", second="differences")
            for r in NAMES
        ),
    ]
    if hasattr(F, "linear_cross_entropy")
    else []
)


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("reduction", NAMES)
def test_second_derivative_is_that_of_the_loss_in_one_piece(reduction: str, device: torch.device) -> None:
    def second(function: Callable[..., Any]) -> list[Any]:
        leaves = [tracer.track(make(device), True) for make in (X, WEIGHT, BIAS)]
        out = function(*leaves)
        cotangent = tracer.track(cotangents([out])[0], True)
        first = torch.autograd.grad(out, leaves, cotangent, create_graph=True)
        found = torch.autograd.grad(first, [*leaves, cotangent], cotangents([*first], 2))
        return [plain(g) for g in found]

    torch.testing.assert_close(second(loss(reduction)), second(loss(reduction, chunk=None)))


def test_gradients_among_the_results_have_no_derivative(device: torch.device) -> None:
    leaves = [tracer.track(make(device), True) for make in (X, WEIGHT)]
    labels = torch.tensor([2, 0, 1, 3, 3], device=device)
    op = torch.ops.torch_nn._linear_cross_entropy_batch_chunked
    results = op(*leaves, labels, None, None, "sum", -100, 0.0, 2, "balanced", torch.float64, True, True, True, False)
    with pytest.raises(UnsupportedCallError, match="among the op's results"):
        results[1].sum().backward()
