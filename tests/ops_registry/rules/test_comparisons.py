"""What ``ops_registry/rules/comparisons.py`` declares to be without a gradient."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch

import ops_registry
import tracer

COMPARE = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
OPERATORS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ALIASES = [torch.not_equal, torch.less, torch.less_equal, torch.greater, torch.greater_equal]
LOGICAL = [torch.logical_and, torch.logical_or, torch.logical_xor, torch.isclose]
TESTS = [
    torch.isnan,
    torch.isinf,
    torch.isfinite,
    torch.isposinf,
    torch.isneginf,
    torch.isreal,
    torch.signbit,
    torch.logical_not,
    torch.any,
    torch.all,
    torch.argmax,
    torch.argmin,
    torch.nonzero,
    torch.argwhere,
    torch.count_nonzero,
    torch.histc,
]
FRESH = [
    torch.zeros_like,
    torch.ones_like,
    torch.empty_like,
    torch.rand_like,
    torch.randn_like,
    lambda x: torch.full_like(x, 3.0),
    lambda x: x.new_zeros(2),
    lambda x: x.new_ones(2),
    lambda x: x.new_empty(2),
    lambda x: x.new_full((2,), 3.0),
]


@pytest.mark.parametrize("function", [*COMPARE, *OPERATORS, *ALIASES, *LOGICAL])
def test_a_comparison_equals_that_of_plain_tensors_and_requires_no_grad(
    function: Callable, device: torch.device
) -> None:
    a, b = torch.tensor([1.0, 2.0, 0.0], device=device), torch.tensor([1.0, 0.0, 3.0], device=device)
    result = function(tracer.track(a, True), tracer.track(b, True))
    assert torch.equal(result, function(a, b))
    assert not result.requires_grad


@pytest.mark.parametrize("function", [*COMPARE, *OPERATORS])
def test_a_comparison_with_a_number_requires_no_grad(function: Callable, device: torch.device) -> None:
    a = torch.tensor([1.0, 2.0, 0.0], device=device)
    result = function(tracer.track(a, True), 1.0)
    assert torch.equal(result, function(a, 1.0))
    assert not result.requires_grad


@pytest.mark.parametrize("function", TESTS)
def test_a_test_or_position_equals_that_of_a_plain_tensor_and_requires_no_grad(
    function: Callable, device: torch.device
) -> None:
    a = torch.tensor([1.0, -2.0, 0.0], device=device)
    result = function(tracer.track(a, True))
    assert torch.equal(result, function(a))
    assert not result.requires_grad


@pytest.mark.parametrize("function", [torch.equal, torch.allclose])
def test_a_comparison_of_whole_tensors_is_a_bool(function: Callable, device: torch.device) -> None:
    x = tracer.tensor([1.0, 2.0], device=device, requires_grad=True)
    assert function(x, x) is True
    assert function(x, x + 1) is False


@pytest.mark.parametrize("function", FRESH)
def test_a_fresh_tensor_requires_no_grad(function: Callable, device: torch.device) -> None:
    x = tracer.tensor([1.0, 2.0], device=device, requires_grad=True)
    result = function(x)
    assert result.shape == (2,)
    assert result.dtype == x.dtype
    assert not result.requires_grad


def test_positions_in_sorted_boundaries_require_no_grad(device: torch.device) -> None:
    x = tracer.tensor([0.5, 1.5], device=device, requires_grad=True)
    boundaries = tracer.tensor([0.0, 1.0, 2.0], device=device, requires_grad=True)
    assert torch.bucketize(x, boundaries).tolist() == [1, 2]
    assert torch.searchsorted(boundaries, x).tolist() == [1, 2]


def test_bits_of_integers_come_through_operators() -> None:
    x = tracer.tensor([5, 6])
    assert (x & 3).tolist() == [1, 2]
    assert (x | 8).tolist() == [13, 14]
    assert (x ^ 1).tolist() == [4, 7]
    assert (~x).tolist() == [-6, -7]
    assert (x << 1).tolist() == [10, 12]
    assert (x >> 1).tolist() == [2, 3]


def test_membership_of_a_number(device: torch.device) -> None:
    x = tracer.tensor([1.0, 2.0], device=device, requires_grad=True)
    assert 2.0 in x
    assert 3.0 not in x


def test_a_mask_made_by_a_comparison_is_a_constant_of_the_graph(device: torch.device) -> None:
    x = tracer.tensor([-1.0, 2.0], device=device, requires_grad=True)
    (x * (x > 0)).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0]


def test_every_comparison_is_listed_as_without_a_gradient() -> None:
    kinds = {r.op: r.kind for r in ops_registry.list_rules()}
    assert {kinds[f.__name__] for f in (*COMPARE, *LOGICAL)} == {"no gradient"}
