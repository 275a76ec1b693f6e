"""What several rules share: the conjugate of tensors and numbers, reduced dimensions put back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsIndex

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
    dims = (dim,) if isinstance(dim, SupportsIndex) else tuple(dim)
    return tuple(sorted(int(d) % rank for d in dims)) if dims else tuple(range(rank))


def restore_dims(
    value: torch.Tensor, shape: Sequence[int], dim: int | Sequence[int] | None, keepdim: bool
) -> torch.Tensor:
    """``value``, a reduction of a tensor of ``shape``, with the reduced dimensions put back with length 1."""
    if keepdim or not shape:
        return value
    for d in reduced_dims(dim, len(shape)):
        value = value.unsqueeze(d)
    return value


def spread(value: torch.Tensor, shape: Sequence[int], dim: int | Sequence[int] | None, keepdim: bool) -> torch.Tensor:
    """``value``, a reduction of a tensor of ``shape``, repeated along what was reduced, without taking memory."""
    return (value if dim is None else restore_dims(value, shape, dim, keepdim)).expand(shape)


def reduced_count(shape: Sequence[int], dim: int | Sequence[int] | None) -> int:
    """How many elements of a tensor of ``shape`` go into one element of its reduction."""
    return math.prod(shape) if dim is None else math.prod(shape[d] for d in reduced_dims(dim, len(shape)))


def put_back(grad: torch.Tensor, indices: torch.Tensor, shape: Sequence[int], dim: int, keepdim: bool) -> torch.Tensor:
    """Zeros of ``shape`` with ``grad`` where ``indices`` say along ``dim``: the transpose of picking elements there."""
    return torch.ops.aten.value_selecting_reduction_backward(grad, dim, indices, shape, keepdim)


def add_at(grad: torch.Tensor, index: torch.Tensor, shape: Sequence[int], dim: int) -> torch.Tensor:
    """Zeros of ``shape`` with each element of ``grad`` added where ``index`` says along ``dim``: the transpose of ``gather``."""
    zeros = grad.new_zeros(shape)
    if torch.is_grad_enabled():
        return zeros.scatter_add(dim, index, grad)
    return zeros.scatter_add_(dim, index, grad)  # a buffer of our own, not recorded: no copy of it is needed


def add_slices(grad: torch.Tensor, index: torch.Tensor, shape: Sequence[int], dim: int) -> torch.Tensor:
    """Zeros of ``shape`` with each slice of ``grad`` added where ``index`` says along ``dim``: the transpose of ``index_select``."""
    zeros = grad.new_zeros(shape)
    if torch.is_grad_enabled():
        return zeros.index_add(dim, index, grad)
    return zeros.index_add_(dim, index, grad)


def divides_well(product: torch.Tensor) -> bool:
    """Whether no element is 0, infinite, nan or so small that digits are lost: then a factor can be divided out of the products."""
    if product.numel() == 0:
        return True
    smallest, largest = product.abs().aminmax()
    return bool(smallest >= torch.finfo(product.dtype).tiny) and bool(largest < torch.inf)


def share(grad: torch.Tensor, ties: torch.Tensor, dim: int | tuple[int, ...] | None) -> torch.Tensor:
    """``grad``, with reduced dimensions kept, in equal parts for the elements of the mask ``ties`` along ``dim``."""
    count = ties.sum() if dim is None else ties.sum(dim, keepdim=True)
    # float16 has no number above 65504: a count beyond would become inf.
    wide = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
    return (wide / count).to(grad.dtype) * ties.view(torch.int8)  # bytes are multiplied much faster than bools


def exclusive_cumprod(value: torch.Tensor, dim: int) -> torch.Tensor:
    """For each element the product of those before it along ``dim``."""
    size = value.shape[dim]
    if size == 0:
        return value
    ones = torch.ones_like(value.narrow(dim, 0, 1))
    return torch.cat((ones, value.narrow(dim, 0, size - 1)), dim).cumprod(dim)
