"""Everything goes by reference counts, the garbage collector off."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from support.memory import live_tensors, no_collector

import nn
import tracer


@pytest.fixture(autouse=True)
def without_the_collector() -> Iterator[None]:
    with no_collector():
        yield


def test_a_dropped_output_frees_its_graph_at_once() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.Graph() as graph:
        y = x.exp()
        z = (y * y).sum()
    nodes = [weakref.ref(n) for n in graph.backward_order(z) if n.op != "leaf"]
    tensor = weakref.ref(y)
    assert len(nodes) == 3 and all(n() is not None for n in nodes)
    del y, z
    assert tensor() is None and all(n() is None for n in nodes)


def test_backward_releases_what_rules_saved() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.Graph() as graph:
        loss = (x.exp() * x).sum()
        assert graph.kept_bytes() > 0
        loss.backward()
        assert graph.kept_bytes() == 0


def test_backward_releases_a_result_though_the_loss_lives_on() -> None:
    # pytorch/pytorch#25340, pytorch/pytorch#82528, HIPS/autograd#219
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    memory = weakref.ref(y.untyped_storage())
    loss = (y * y).sum()
    del y
    assert memory() is not None, "two rules save the result"
    loss.backward()
    assert memory() is None


def test_retain_graph_keeps_it_until_the_output_goes() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.Graph() as graph:
        loss = (x.exp() * x).sum()
        loss.backward(retain_graph=True)
        assert graph.kept_bytes() > 0
        del loss
        assert len(graph) == 0


def test_a_failed_backward_leaks_nothing() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    before = live_tensors()

    def attempt() -> None:
        y = x.exp()
        y.register_hook(lambda g: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            (y * y).sum().backward()
            raise AssertionError("the hook did not run")

    with tracer.Graph() as graph:
        attempt()
        assert len(graph) == 0
    assert live_tensors() == before


def test_a_failed_forward_leaks_nothing() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    before = live_tensors()

    def attempt() -> None:
        with contextlib.suppress(RuntimeError):
            x.exp() @ torch.ones(5)
            raise AssertionError("the shapes do not fit, and nothing was raised")

    attempt()
    assert live_tensors() == before


def test_a_double_backward_leaks_nothing() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    before = live_tensors()

    def attempt() -> None:
        (first,) = torch.autograd.grad((x.exp() * x.tanh()).sum(), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)

    attempt()
    assert live_tensors() == before


def test_an_in_place_write_into_a_saved_input_makes_no_cycle() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    before = live_tensors()

    def attempt() -> None:
        y = x * 1
        z = y * x  # saves y
        y.add_(z)  # y's history now leads through the node that saved y

    attempt()
    assert live_tensors() == before


class SmallNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4 * 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x))) + x
        return self.head(F.dropout(F.max_pool2d(x, 2), 0.1).flatten(1))


def test_training_steps_leave_the_count_of_tensors_and_nodes_where_it_was() -> None:
    model = nn.track(SmallNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = torch.randn(8, 1, 4, 4), torch.randint(3, (8,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    with tracer.Graph() as graph:
        for _ in range(3):
            step()
        tensors = live_tensors()
        for _ in range(50):
            step()
        assert live_tensors() == tensors and len(graph) == 0
