"""Which shapes attention takes: its own checks, because torch's imports sympy when it is first called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

import nn
from nn.attention import _broadcast_together, _check_mask

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_shapes_broadcast_together_where_torch_broadcasts_them(shapes: list[tuple[int, ...]]) -> None:
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        assert not _broadcast_together(*shapes)
    else:
        assert _broadcast_together(*shapes)


@given(SHAPES, SHAPES)
def test_a_mask_fits_where_torch_broadcasts_it_to_the_scores(mask: tuple[int, ...], scores: tuple[int, ...]) -> None:
    try:
        fits = tuple(torch.broadcast_shapes(mask, scores)) == scores
    except RuntimeError:
        fits = False
    try:
        _check_mask("mask", torch.empty(mask), scores)
    except nn.ShapeError:
        assert not fits
    else:
        assert fits


def test_attention_with_masks_loads_no_sympy() -> None:
    code = """
import sys, torch, nn
x, mask, padding = torch.randn(3, 5, 8), torch.zeros(5, 5), torch.zeros(3, 5, dtype=torch.bool)
nn.SelfAttention(8, 2)(x, attn_mask=mask, key_padding_mask=padding)
nn.CrossAttention(8, 2)(x, torch.randn(1, 4, 8))
print("sympy" in sys.modules)
"""
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
