"""Steps that torch's compiler compiles do what they do eagerly."""

from __future__ import annotations

import pytest
import torch

import tracer

pytestmark = pytest.mark.slow


def test_a_tracked_argument_may_enter_a_kernel_of_torchs() -> None:
    def step(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = torch.addmm(bias, a, b)
        result.sum().backward()
        return result

    def inputs() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [tracer.tensor(torch.randn(shape), requires_grad=True) for shape in ((2, 3), (2, 2), (2, 3))]

    compiled = tracer.compile(step, backend="inductor")
    for _ in range(2):
        ours, theirs = inputs(), inputs()
        torch.testing.assert_close(compiled(*ours).detach(), step(*theirs).detach())
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad)
