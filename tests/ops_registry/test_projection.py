"""Bringing what a rule returned onto its input."""

from __future__ import annotations

import pytest
import torch

import ops_registry
from ops_registry.projection import project


def where() -> str:
    return "the rule"


def test_a_fitting_gradient_is_returned_as_it_is() -> None:
    grad = torch.ones(2, 3)
    assert project(grad, grad.shape, grad.dtype, where) is grad


@pytest.mark.parametrize(
    ("given", "wanted"),
    [((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 3), (1, 1)), ((2, 3), ()), ((0, 3), (1, 3)), ((4, 2, 3), (2, 1))],
)
def test_broadcast_axes_are_summed(given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    grad = torch.arange(float(torch.Size(given).numel())).view(given)
    projected = project(grad, torch.Size(wanted), grad.dtype, where)
    leaf = torch.zeros(wanted, requires_grad=True)
    leaf.expand(given).backward(grad)
    torch.testing.assert_close(projected, leaf.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_where_leading_and_stretched_axes_are_summed(dtype: torch.dtype) -> None:
    grad = torch.randn(50, 3, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    projected = project(grad, torch.Size((3, 1)), dtype, where)
    assert projected.dtype is dtype
    assert torch.equal(projected, grad.float().sum([0, 2]).to(dtype).unsqueeze(1))


def test_the_real_part_is_taken_for_a_real_input() -> None:
    assert project(torch.tensor([1 + 2j]), torch.Size([1]), torch.float32, where).tolist() == [1.0]


def test_the_dtype_is_that_of_the_input() -> None:
    assert project(torch.ones(1, dtype=torch.float64), torch.Size([1]), torch.bfloat16, where).dtype == torch.bfloat16
    assert project(torch.ones(1), torch.Size([1]), torch.complex64, where).dtype == torch.complex64


@pytest.mark.parametrize(("given", "wanted"), [((3,), (2,)), ((3,), (2, 3)), ((), (2,)), ((2, 3), (3, 2))])
def test_a_shape_that_does_not_broadcast_raises(given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    with pytest.raises(ops_registry.RuleResultError, match="the rule returned a gradient of shape"):
        project(torch.ones(given), torch.Size(wanted), torch.float32, where)


def test_an_integer_gradient_raises() -> None:
    with pytest.raises(ops_registry.RuleResultError, match="int64"):
        project(torch.ones(1, dtype=torch.int64), torch.Size([1]), torch.float32, where)
