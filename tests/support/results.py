"""What tests make of a result."""

from __future__ import annotations

from typing import Any

import torch


def square(x: torch.Tensor) -> torch.Tensor:
    """Makes the second derivative of a linear op something other than zero."""
    return x * x


def gradient(y: torch.Tensor, x: torch.Tensor) -> Any:
    """The gradient of the sum of ``y`` at ``x``, as nested lists of numbers."""
    (found,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    return found.detach().tolist()
