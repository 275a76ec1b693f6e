"""What the rules of losses share: the reduction of the terms to the loss, and its transpose.

A fused backward kernel is linear in its ``grad_output``, whose gradient is the kernel itself, reduced as the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ops_registry.shared.dimensions import broadcast_shape

#: How torch's C functions spell the argument ``reduction``.
NONE, MEAN, SUM = 0, 1, 2


def reduce_loss(terms: torch.Tensor, reduction: int) -> torch.Tensor:
    """The loss, from its terms."""
    return terms.mean() if reduction == MEAN else terms.sum() if reduction == SUM else terms


def spread_reduction(grad: torch.Tensor, reduction: int, shape: Sequence[int]) -> torch.Tensor:
    """The gradient of each term of a loss, as a tensor that broadcasts to ``shape``, that of the terms."""
    return grad / math.prod(shape) if reduction == MEAN and 0 not in shape else grad


def reduce_grad(terms: torch.Tensor, reduction: int) -> torch.Tensor:
    """The transpose of ``spread_reduction``: gradients of the terms, reduced as the terms are (to 0 where there are none)."""
    return terms if reduction == NONE else spread_reduction(terms.sum(), reduction, terms.shape)


def broadcast_pair(input: torch.Tensor, target: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in their common shape and of ``dtype``, as the fused kernels take them."""
    if input.shape != target.shape:
        shape = broadcast_shape(input.shape, target.shape)
        input, target = input.expand(shape), target.expand(shape)
    return input.to(dtype) if input.dtype != dtype else input, target.to(dtype) if target.dtype != dtype else target
