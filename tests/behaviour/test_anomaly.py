"""Anomaly mode: nan that backward makes is an error that shows where the call was made, as in torch."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ops_registry.torch_private
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


NAN = float("nan")


class NanForTheSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, k: int, b: torch.Tensor) -> torch.Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grad, None, grad * NAN


Leaf = Callable[[torch.Tensor], torch.Tensor]


def stacked(leaf: Leaf) -> torch.Tensor:
    x = leaf(torch.ones(2))
    both = torch.stack([torch.ones(2), x * 1])
    both.register_hook(lambda grad: grad * torch.tensor([[1.0], [NAN]]))
    return both


def sparse(leaf: Leaf) -> torch.Tensor:
    rows = F.embedding(torch.tensor([1, 2]), leaf(torch.ones(4, 2)), sparse=True)
    rows.register_hook(lambda grad: grad * NAN)
    return rows


#: Programs whose backward makes nan.
MAKE_NAN: dict[str, Callable[[Leaf], torch.Tensor]] = {
    "sqrt": lambda leaf: leaf(torch.zeros(1)).sqrt() * 0,
    "the second factor": lambda leaf: torch.tensor([NAN]) * leaf(torch.ones(1)),
    "a denominator": lambda leaf: torch.tensor([NAN]) / leaf(torch.ones(1)),
    "the third of addcmul": lambda leaf: torch.addcmul(torch.ones(1), torch.tensor([NAN]), leaf(torch.ones(1))),
    "both factors": lambda leaf: leaf(torch.tensor([NAN])) * leaf(torch.tensor([1.0])),
    "one of a list": stacked,
    "a custom Function": lambda leaf: NanForTheSecond.apply(leaf(torch.ones(2)), 3, leaf(torch.ones(2))),
    "a sparse gradient": sparse,
}


def message(program: Callable[[Leaf], torch.Tensor], leaf: Leaf) -> str:
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="Error detected in"),
        pytest.raises(RuntimeError, match="returned nan values") as raised,
    ):
        program(leaf).sum().backward()
    return str(raised.value)


@pytest.mark.parametrize("name", MAKE_NAN)
def test_the_error_names_torchs_node_and_counts_its_outputs_as_torch_does(name: str) -> None:
    ours = message(MAKE_NAN[name], lambda x: tracer.tensor(x, requires_grad=True))
    torchs = message(MAKE_NAN[name], lambda x: x.requires_grad_())
    assert ours.startswith(torchs.removesuffix("."))


def test_detect_anomaly_warns_and_sets_the_mode_for_its_block() -> None:
    with pytest.warns(UserWarning, match="Anomaly Detection has been enabled"):
        block = torch.autograd.detect_anomaly()
    with block, pytest.warns(UserWarning, match="in nan_from_sqrt"), pytest.raises(AnomalyError):
        nan_from_sqrt(leaf()).backward()
    assert not torch.is_anomaly_enabled()
    nan_from_sqrt(leaf()).backward()


def test_calls_of_another_thread_are_noted_too() -> None:
    losses: list[torch.Tensor] = []
    with torch.autograd.set_detect_anomaly(True):
        thread = threading.Thread(target=lambda: losses.append(nan_from_sqrt(leaf())))
        thread.start()
        thread.join()
        with pytest.warns(UserWarning, match="in nan_from_sqrt"), pytest.raises(AnomalyError):
            losses[0].backward()


def test_backward_in_another_thread_raises_there() -> None:
    raised: list[Exception] = []

    def run_backward(loss: torch.Tensor) -> None:
        try:
            loss.backward()
        except AnomalyError as error:
            raised.append(error)

    with torch.autograd.set_detect_anomaly(True), pytest.warns(UserWarning, match="in nan_from_sqrt"):
        thread = threading.Thread(target=run_backward, args=(nan_from_sqrt(leaf()),))
        thread.start()
        thread.join()
    assert len(raised) == 1


def test_a_switch_bound_before_us_checks_for_nan_and_knows_no_stack() -> None:
    """``from torch import set_anomaly_enabled`` is a function in C: it cannot be given other code."""
    ops_registry.torch_private.set_anomaly_enabled(True, True)
    with pytest.warns(UserWarning, match="No forward pass information"), pytest.raises(AnomalyError):
        nan_from_sqrt(leaf()).backward()
