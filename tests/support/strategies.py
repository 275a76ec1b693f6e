"""Shapes and tensors for properties that hypothesis tries."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes


def broadcastable_shapes(count: int, max_rank: int = 6) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """``count`` shapes that broadcast together: ranks 0 to ``max_rank``, axes of length 0 and 1 among them."""
    found = mutually_broadcastable_shapes(num_shapes=count, max_dims=max_rank, min_side=0, max_side=3)
    return found.map(lambda shapes: shapes.input_shapes)


def tensor_of(shape: tuple[int, ...], seed: int, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    """A float64 tensor of uniform values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
