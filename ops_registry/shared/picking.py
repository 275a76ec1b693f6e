"""The transposes of picking elements: zeros with a gradient put back, or added, where an index says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ops_registry.shared.recorded import recorded


def put_back(grad: torch.Tensor, indices: torch.Tensor, shape: Sequence[int], dim: int, keepdim: bool) -> torch.Tensor:
    """Zeros of ``shape`` with ``grad`` where ``indices`` say along ``dim``: the transpose of picking elements there."""
    return torch.ops.aten.value_selecting_reduction_backward(grad, dim, indices, shape, keepdim)


def add_at(grad: torch.Tensor, index: torch.Tensor, shape: Sequence[int], dim: int) -> torch.Tensor:
    """Zeros of ``shape`` with each element of ``grad`` added where ``index`` says along ``dim``: the transpose of ``gather``."""
    zeros = grad.new_zeros(shape)
    if recorded():
        return zeros.scatter_add(dim, index, grad)
    return zeros.scatter_add_(dim, index, grad)  # a buffer of our own, not recorded: no copy of it is needed


def add_slices(grad: torch.Tensor, index: torch.Tensor, shape: Sequence[int], dim: int) -> torch.Tensor:
    """Zeros of ``shape`` with each slice of ``grad`` added where ``index`` says along ``dim``: the transpose of ``index_select``."""
    zeros = grad.new_zeros(shape)
    if recorded():
        return zeros.index_add(dim, index, grad)
    return zeros.index_add_(dim, index, grad)
