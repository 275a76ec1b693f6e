"""Anomaly mode: nan that backward makes is an error that shows where the call was made, as in torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tracer
from tracer.errors import AnomalyError


@pytest.fixture(autouse=True)
def mode_off_again() -> Iterator[None]:
    yield
    torch.autograd.set_detect_anomaly(False)


def leaf() -> torch.Tensor:
    return tracer.tensor([0.0, 1.0], requires_grad=True)


def nan_from_sqrt(x: torch.Tensor) -> torch.Tensor:
    return (x.sqrt() * 0).sum() + 0 * x.sum()


@pytest.mark.parametrize("lane", ["backward", "grad"])
def test_nan_in_backward_raises_with_the_op_and_shows_the_users_line(lane: str) -> None:
    x = leaf()
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match=r"Error detected in SqrtBackward0(.|\n)*in nan_from_sqrt(.|\n)*x.sqrt\(\)"),
        pytest.raises(AnomalyError, match="Function 'SqrtBackward0' returned nan values in its 0th output"),
    ):
        loss = nan_from_sqrt(x)
        loss.backward() if lane == "backward" else torch.autograd.grad(loss, x)
    assert x.grad is None


def test_without_the_forward_call_under_the_mode_the_warning_says_so() -> None:
    loss = nan_from_sqrt(leaf())
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="No forward pass information available"),
        pytest.raises(AnomalyError),
    ):
        loss.backward()


def test_check_nan_false_lets_nan_through() -> None:
    x = leaf()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        nan_from_sqrt(x).backward()
    assert x.grad[0].isnan()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")


def test_an_error_in_a_functions_backward_shows_the_stack_without_check_nan_too() -> None:
    with (
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        pytest.warns(UserWarning, match=r"Error detected in FailsBackward(.|\n)*Fails.apply\(leaf"),
        pytest.raises(ValueError, match="mine"),
    ):
        Fails.apply(leaf()).sum().backward()


def test_a_second_derivative_names_the_call_that_it_was_induced_by() -> None:
    x = leaf()
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match=r"induced by PowBackward0(.|\n)*x\*\*1.5"),
        pytest.raises(AnomalyError),
    ):
        (first,) = torch.autograd.grad((x**1.5).sum(), x, create_graph=True)
        torch.autograd.grad((first * 0).sum(), x)


def test_inside_a_graph_and_after_it_the_mode_goes_on() -> None:
    for graph in (tracer.Graph(), tracer.Graph()):
        with torch.autograd.set_detect_anomaly(True):
            with graph:
                inside = nan_from_sqrt(leaf())
            after = nan_from_sqrt(leaf())
            for loss in (inside, after):
                with pytest.warns(UserWarning, match="in nan_from_sqrt"), pytest.raises(AnomalyError):
                    loss.backward()


def test_once_off_calls_note_nothing_and_nan_is_no_error() -> None:
    with torch.autograd.set_detect_anomaly(True):
        pass
    x = leaf()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = nan_from_sqrt(x)
        assert loss.grad_fn.extras is None
        loss.backward()
    assert x.grad[0].isnan()
