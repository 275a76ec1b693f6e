"""What several rules share: the conjugate of tensors and numbers, reduced dimensions put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def conj(value: Any) -> Any:
    """The complex conjugate of a tensor or a number; real ones are returned as they are."""
    if isinstance(value, torch.Tensor):
        return value.conj() if value.is_complex() else value
    return value.conjugate() if isinstance(value, complex) else value


def reduced_dims(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The dimensions that a reduction with argument ``dim`` takes away, ascending and not negative; all for None or ()."""
    if dim is None or rank == 0:
        return tuple(range(rank))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))


def restore_dims(value: torch.Tensor, shape: Sequence[int], dim: int | Sequence[int] | None, keepdim: bool) -> torch.Tensor:
    """``value``, a reduction of a tensor of ``shape``, with the reduced dimensions put back with length 1."""
    if keepdim or not shape:
        return value
    for d in reduced_dims(dim, len(shape)):
        value = value.unsqueeze(d)
    return value
