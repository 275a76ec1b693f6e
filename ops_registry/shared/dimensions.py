"""Shapes and dimensions: reduced dimensions put back, tensors cropped or filled up, shapes broadcast, tensors that stand for a shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F


def reduced_dims(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The dimensions that a reduction with argument ``dim`` takes away, ascending and not negative; all for None or ()."""
    if dim is None or rank == 0:
        return tuple(range(rank))
    dims: tuple[Any, ...] = tuple(dim) if isinstance(dim, Sequence) else (dim,)
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


def fit(value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """``value``, cropped or filled up with zeros at the end of each dimension to ``shape``; a number is a vector of length 1."""
    if value.shape == shape:
        return value
    if not shape:
        return value.select(0, 0)
    if not value.dim():
        value = value.unsqueeze(0)
    return F.pad(value, [p for have, want in zip(value.shape, shape, strict=True) for p in (want - have, 0)][::-1])


def broadcast_shape(*shapes: Sequence[int]) -> torch.Size:
    """The shape that tensors of ``shapes`` have in common when they are broadcast.

    For formulas in place of ``torch.broadcast_shapes``, whose first call imports sympy and 480 modules: half a second in a first
    backward pass. The op has run, so the shapes are known to fit; ``ValueError`` where they do not.
    """
    rank = max(map(len, shapes), default=0)
    lengths = [1] * rank
    for shape in shapes:
        for d, length in enumerate(shape, rank - len(shape)):
            if length != 1 and lengths[d] not in (1, length):
                raise ValueError(f"the shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast")
            lengths[d] = length if length != 1 else lengths[d]
    return torch.Size(lengths)


def shape_only(grad: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of ``shape`` in the dtype of ``grad`` that takes no memory, for kernels that read no more of an input than that."""
    return grad.new_empty(()).expand(shape)
