"""Forward mode held against backward."""

from __future__ import annotations

import math

import torch

import ops_registry
from tracer.checks.tangents import agree, products


def test_both_products_of_a_call_are_the_same() -> None:
    values = [torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)]
    pair = products(lambda at: (at[0] @ at[1].sin(), at[0].split(2, 1)), values, (0, 1))
    assert pair is not None and agree(pair) and pair[0] != 0


def test_a_formula_that_is_not_symmetric_shows(clean_registry: None) -> None:
    ops_registry.backward(torch.flip, replace=True, symmetric=True)(lambda grad, dims: grad.roll(1, dims))
    pair = products(lambda at: at[0].flip(0), [torch.randn(4, dtype=torch.float64)], (0,))
    assert pair is not None and not agree(pair)


def test_a_call_without_a_gradient_or_in_single_precision_has_no_products() -> None:
    assert products(lambda at: at[0] > 0, [torch.randn(3, dtype=torch.float64)], (0,)) is None
    assert products(lambda at: at[0].sin(), [torch.randn(3)], (0,)) is None


def test_what_is_not_finite_says_nothing() -> None:
    assert agree((1.0, math.nan)) and not agree((math.nan, 1.0))
