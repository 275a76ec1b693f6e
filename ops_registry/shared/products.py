"""Products over a dimension: of all elements but one, by division where that is safe."""

from __future__ import annotations

import torch

from ops_registry.shared.decisions import everywhere, has_values


def divides_well(product: torch.Tensor) -> bool:
    """Whether no element is 0, infinite, nan or so small that digits are lost: then a factor can be divided out of the products.

    False where nobody can know, in a step that is captured.
    """
    if product.numel() == 0:
        return True
    if not has_values(product):
        return False
    smallest, largest = product.abs().aminmax()
    return everywhere((smallest >= torch.finfo(product.dtype).tiny) & (largest < torch.inf))


def exclusive_cumprod(value: torch.Tensor, dim: int) -> torch.Tensor:
    """For each element the product of those before it along ``dim``."""
    size = value.shape[dim]
    if size == 0:
        return value
    ones = torch.ones_like(value.narrow(dim, 0, 1))
    return torch.cat((ones, value.narrow(dim, 0, size - 1)), dim).cumprod(dim)
