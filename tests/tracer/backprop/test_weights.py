"""What outputs are weighted with: a number, or a tensor that broadcasts to the output's shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.leaves import leaf, tracked

import tracer

ROW, COLUMN = torch.tensor([1.0, 10.0]), torch.tensor([[1.0], [10.0]])

WEIGHTS = {
    "number": (2.0, [[4.0, 4.0], [4.0, 4.0]]),
    "integer": (3, [[6.0, 6.0], [6.0, 6.0]]),
    "number of NumPy": (np.float32(2.0), [[4.0, 4.0], [4.0, 4.0]]),
    "tensor of one element": (torch.tensor(2), [[4.0, 4.0], [4.0, 4.0]]),
    "row": (ROW, [[2.0, 20.0], [2.0, 20.0]]),
    "column": (COLUMN, [[2.0, 2.0], [20.0, 20.0]]),
}


def filled(run: Callable[[torch.Tensor, torch.Tensor, Any], None], weight: Any) -> Any:
    x = tracked([[1.0, 2.0], [3.0, 4.0]])
    run(x, x * 2, weight)
    return x.grad.tolist()


@pytest.mark.parametrize(("weight", "expected"), WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize(
    "run",
    [
        lambda x, y, w: y.backward(w),
        lambda x, y, w: torch.autograd.backward(y, w),
        lambda x, y, w: torch.autograd.backward([y], grad_tensors=[w]),
        lambda x, y, w: tracer.backward(y, w),
        lambda x, y, w: setattr(x, "grad", torch.autograd.grad(y, x, w)[0]),
        lambda x, y, w: setattr(x, "grad", torch.autograd.grad([y], [x], grad_outputs=[w])[0]),
        lambda x, y, w: setattr(x, "grad", tracer.grad(y, x, w)[0]),
    ],
    ids=["method", "torch.backward", "a list", "tracer.backward", "torch.grad", "grad of a list", "tracer.grad"],
)
def test_a_weight_is_spread_over_the_output(run: Callable[..., None], weight: Any, expected: Any) -> None:
    assert filled(run, weight) == expected


@pytest.mark.parametrize("shape", [(3,), (1, 2, 2), (2, 3)])
def test_a_weight_that_does_not_broadcast_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(tracer.GradientArgumentError, match=r"shape \(.*\), and the output \(2, 2\).*broadcasts"):
        tracked([[1.0, 2.0], [3.0, 4.0]]).exp().backward(torch.ones(shape))


def test_no_weight_on_several_elements_stays_an_error() -> None:
    with pytest.raises(tracer.GradientArgumentError, match="implicitly only for scalar outputs"):
        leaf(1.0, 2.0).exp().backward()


def test_a_complex_number_is_no_weight_of_a_real_output() -> None:
    with pytest.raises(tracer.GradientArgumentError, match="complex"):
        leaf(1.0).exp().backward(2j)
    z = tracked([1 + 1j], dtype=torch.complex128)
    assert torch.autograd.grad(z * 2, z, 2j)[0].tolist() == [4j]
    assert torch.autograd.grad(z * 2, z, 2.0)[0].tolist() == [4 + 0j]


def test_a_weight_that_is_spread_keeps_its_history() -> None:
    x, weight = tracked([[1.0, 2.0], [3.0, 4.0]]), leaf(1.0, 2.0)
    (first,) = torch.autograd.grad(x * x, x, weight, create_graph=True)
    assert torch.autograd.grad(first.sum(), weight)[0].tolist() == [8.0, 12.0]  # the sums of 2x down the columns


def test_rows_of_a_batch_of_cotangents_broadcast_too_and_numbers_are_none() -> None:
    x = tracked([[1.0, 2.0], [3.0, 4.0]])
    (found,) = torch.autograd.grad(x * 2, x, torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), is_grads_batched=True)
    assert found.shape == (3, 2, 2) and found[2].tolist() == [[10.0, 12.0], [10.0, 12.0]]
    with pytest.raises(tracer.GradientArgumentError, match="first dimension"):
        torch.autograd.grad(x * 2, x, 2.0, is_grads_batched=True)


def test_a_spread_weight_of_a_leaf_is_no_shared_memory() -> None:
    x = leaf(1.0, 2.0)
    x.backward(2.0)
    x.grad[0] = 5.0
    assert x.grad.tolist() == [5.0, 2.0]
