"""Who listens is told of each backward pass before it runs, once, and of its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tracer
from tracer.backprop.listeners import listeners


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    heard: list[Any] = []

    def listen(outputs: tuple[Any, ...], weights: tuple[Any, ...], tracked: bool) -> Callable[[], None]:
        heard.append((len(outputs), weights, tracked))
        return lambda: heard.append("end")

    listeners.append(listen)
    yield heard
    listeners.remove(listen)


def leaf() -> tracer.Tensor:
    return tracer.tensor([1.0, 2.0], requires_grad=True)


def test_backward_and_grad_are_told_with_their_weights(heard: list[Any]) -> None:
    x = leaf()
    weight = torch.ones(2)
    (x * x).backward(weight)
    torch.autograd.backward([x.sum(), x * 2], [None, weight])
    torch.autograd.grad((x * x).sum(), x)
    assert heard == [(1, (weight,), True), "end", (2, (None, weight), True), "end", (1, (None,), True), "end"]


def test_a_gradient_that_is_differentiated_again_is_part_of_a_loss(heard: list[Any]) -> None:
    x = leaf()
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    assert heard == []
    g.sum().backward()
    assert heard == [(1, (None,), True), "end"]


def test_a_pass_inside_another_is_part_of_that(heard: list[Any]) -> None:
    checkpoint(lambda x: x.sin(), leaf(), use_reentrant=True).sum().backward()
    assert heard == [(1, (None,), True), "end"]


def test_a_pass_of_torch_alone_is_told_as_such(heard: list[Any]) -> None:
    w = torch.ones(2, requires_grad=True)
    (w * w).sum().backward()
    assert heard == [(1, (None,), False)]


def test_what_torch_gets_from_our_pass_is_part_of_it(heard: list[Any]) -> None:
    w = torch.ones(2, requires_grad=True)
    (w.exp() * leaf()).sum().backward()
    assert heard == [(1, (None,), True), "end"] and w.grad is not None
