"""Masks of bools as numbers to multiply by, and gradients that are shared out among the elements of a mask."""

from __future__ import annotations

import torch

from ops_registry.shared.precision import wide


def zeros_and_ones(mask: torch.Tensor, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """The mask as numbers, for a product or a ``lerp``: signed bytes are converted and multiplied much faster than bools."""
    numbers = mask.view(torch.int8)
    return numbers if dtype is torch.int8 else numbers.to(dtype)


def select_finite(mask: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``where(mask, chosen, other)`` for two tensors that are finite everywhere: weights of 0 and 1 select much faster."""
    return torch.lerp(other, chosen, zeros_and_ones(mask, chosen.dtype))


def share_among_ties(grad: torch.Tensor, ties: torch.Tensor, dim: int | tuple[int, ...] | None) -> torch.Tensor:
    """``grad``, with reduced dimensions kept, in equal parts for the elements of the mask ``ties`` along ``dim``."""
    count = ties.sum() if dim is None else ties.sum(dim, keepdim=True)
    # float16 has no number above 65504: a count beyond would become inf.
    return (wide(grad) / count).to(grad.dtype) * zeros_and_ones(ties)
