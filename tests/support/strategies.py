"""Hypothesis strategies for shapes and tensors."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

sizes = st.integers(0, 3)


@st.composite
def broadcastable_shapes(draw: st.DrawFn, count: int, max_rank: int = 6) -> list[tuple[int, ...]]:
    """``count`` shapes that broadcast together: ranks 0 to ``max_rank``, axes of length 0 and 1 among them."""
    full = draw(st.lists(st.sampled_from((0, 1, 1, 2, 3)), max_size=max_rank))
    shapes = []
    for _ in range(count):
        rank = draw(st.integers(0, len(full)))
        kept = full[len(full) - rank :]
        shapes.append(tuple(1 if draw(st.booleans()) and size != 0 else size for size in kept))
    return shapes


def tensor_of(shape: tuple[int, ...], seed: int, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    """A float64 tensor of uniform values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
