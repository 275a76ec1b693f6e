"""Hypothesis strategies for shapes and tensors."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from tracer.checks.rules.samples import HypothesisDice, broadcastable


@st.composite
def broadcastable_shapes(draw: st.DrawFn, count: int, max_rank: int = 6) -> list[tuple[int, ...]]:
    """``count`` shapes that broadcast together: ranks 0 to ``max_rank``, axes of length 0 and 1 among them."""
    return broadcastable(HypothesisDice(draw), count, max_rank)


def tensor_of(shape: tuple[int, ...], seed: int, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    """A float64 tensor of uniform values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
