"""Derivatives of a function at given numbers, to be held against values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tracer
from support.checking import plain


def first(
    function: Callable[..., Any], *points: Any, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> tuple[Any, ...]:
    """Gradients of the summed result with respect to each point; of the real part, where the result is complex."""
    return _derivatives(function, points, dtype, device, 1)


def second(
    function: Callable[..., Any], *points: Any, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> tuple[Any, ...]:
    """Gradients of the summed first gradients."""
    return _derivatives(function, points, dtype, device, 2)


def _derivatives(
    function: Callable[..., Any], points: tuple[Any, ...], dtype: torch.dtype, device: torch.device | str, order: int
) -> tuple[Any, ...]:
    leaves = [tracer.tensor(p, dtype=dtype, device=device, requires_grad=True) for p in points]
    found: list[Any] = [function(*leaves)]
    for step in range(order):
        total = sum((f.sum().real for f in found if f is not None), torch.zeros((), device=device))
        found = list(torch.autograd.grad(total, leaves, create_graph=step + 1 < order, allow_unused=True))
    return tuple(plain(f) for f in found)


def assert_values(tensor: torch.Tensor | None, expected: Any) -> None:
    """``tensor`` holds these numbers, to twelve digits (six in single precision); nan equals nan."""
    assert tensor is not None, "no gradient arrived"
    wanted = torch.tensor(expected, dtype=tensor.dtype, device=tensor.device)
    rtol = 1e-12 if tensor.dtype in (torch.float64, torch.complex128) else 1e-6
    torch.testing.assert_close(tensor, wanted, rtol=rtol, atol=1e-14, equal_nan=True)
