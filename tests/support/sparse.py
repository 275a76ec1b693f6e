"""Small sparse matrices, by their values."""

from __future__ import annotations

from typing import Any

import torch

T = torch.Tensor

#: (0, 2), (1, 0), (1, 2); and (1, 0) once more.
PLACES = ((0, 1, 1), (2, 0, 2))
TWICE = ((0, 1, 1, 1), (2, 0, 2, 0))


def long(data: Any, like: T) -> T:
    """Indices on the device of ``like``."""
    return torch.tensor(data, dtype=torch.int64, device=like.device)


def coo(v: T, places: Any = TWICE, shape: tuple[int, ...] = (2, 3), **options: Any) -> T:
    """The matrix with the values ``v`` at ``places``."""
    return torch.sparse_coo_tensor(long(places, v), v, shape, **options)


def csr(v: T, shape: tuple[int, ...] = (2, 3)) -> T:
    """The same with three values, in rows."""
    return torch.sparse_csr_tensor(long((0, 1, 3), v), long((2, 0, 2), v), v, shape)


def batch(v: T) -> T:
    """Two matrices of shape ``(2, 3)`` in rows; ``v`` has shape ``(2, 3)``."""
    return torch.sparse_csr_tensor(long(((0, 1, 3), (0, 2, 3)), v), long(((2, 0, 2), (0, 1, 1)), v), v, (2, 2, 3))
