"""First derivatives are taken by ``torch.autograd.grad`` and by ``.backward()``, and have to be the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tracer.checks.derivatives import BackwardDiffersError, differentiate
from tracer.checks.leaves import leaves_of, native_leaf, tracked_leaf


def test_a_gradient_that_backward_fills_in_otherwise_is_found() -> None:
    leaves = leaves_of([torch.ones(2, dtype=torch.float64)], (0,), tracked_leaf)
    leaves[0].register_post_accumulate_grad_hook(lambda x: x.grad.mul_(2))
    with pytest.raises(
        BackwardDiffersError, match=r"backward\(\) differs from grad\(\) \(wanted input 0: .* at \["
    ) as caught:
        differentiate(lambda at: at[0] * 3, leaves, (0,), 1, tracked_leaf)
    assert "None" not in str(caught.value)


def test_a_gradient_that_backward_does_not_fill_in_is_found() -> None:
    def cleared(x: Any) -> None:
        x.grad = None

    leaves = leaves_of([torch.ones(2, dtype=torch.float64)], (0,), tracked_leaf)
    leaves[0].register_post_accumulate_grad_hook(cleared)
    with pytest.raises(BackwardDiffersError, match=r"None in place of float64\[2\]"):
        differentiate(lambda at: at[0] * 3, leaves, (0,), 1, tracked_leaf)


def test_an_input_that_receives_nothing_has_no_gradient_by_either_way() -> None:
    leaves = leaves_of([torch.ones(2), torch.ones(2)], (0, 1), tracked_leaf)
    found = differentiate(lambda at: at[0] * 3, leaves, (0, 1), 1, tracked_leaf)
    assert found.first[0] is not None
    assert found.first[1] is None


def test_the_leaves_are_left_without_a_gradient() -> None:
    leaves = leaves_of([torch.ones(2)], (0,), tracked_leaf)
    differentiate(lambda at: at[0].exp(), leaves, (0,), 1, tracked_leaf)
    assert leaves[0].grad is None


@pytest.mark.parametrize(("leaf", "sweeps"), [(tracked_leaf, 2), (native_leaf, 1)])
def test_tracked_leaves_alone_are_differentiated_twice(leaf: Any, sweeps: int) -> None:
    ran: list[Any] = []

    def function(at: list[Any]) -> Any:
        result = at[0] * 1.0
        result.register_hook(ran.append)
        return result.sin()

    differentiate(function, leaves_of([torch.ones(2)], (0,), leaf), (0,), 1, leaf)
    assert len(ran) == sweeps
