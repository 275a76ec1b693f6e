"""Leaves of a few numbers: tracked tensors that require grad."""

from __future__ import annotations

from typing import Any

import torch

import tracer


def leaf(*values: float) -> tracer.Tensor:
    """A float64 leaf of shape ``(len(values),)``."""
    return tracer.tensor(values, dtype=torch.float64, requires_grad=True)


def native_leaf(*values: float) -> torch.Tensor:
    """The same of torch's own autograd."""
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def leaf32(*values: float) -> tracer.Tensor:
    """The same in float32, four bytes an element, as most users make it."""
    return tracer.tensor(values, dtype=torch.float32, requires_grad=True)


def tracked(data: Any, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> tracer.Tensor:
    """A leaf of nested lists of numbers, of any shape, on any device."""
    return tracer.tensor(data, dtype=dtype, device=device, requires_grad=True)
