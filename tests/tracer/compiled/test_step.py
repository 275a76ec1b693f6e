"""A compiled step does what the step does eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import nn
import tracer


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))


def train_step(model: torch.nn.Module) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def assert_same_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def test_gradients_are_those_of_the_eager_step() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    compiled = tracer.compile(train_step(model), backend="replay")
    torch.testing.assert_close(compiled(x, y).detach(), train_step(twin)(x, y).detach())
    assert_same_gradients(model, twin)


def test_gradients_add_to_those_that_are_there() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    compiled = tracer.compile(train_step(model), backend="replay")
    for _ in range(3):
        x, y = torch.randn(5, 4), torch.randint(3, (5,))
        compiled(x, y)
        train_step(twin)(x, y)
    assert_same_gradients(model, twin)


def test_what_is_written_through_a_conjugated_view_is_read_again() -> None:
    def write(whole: bool) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
        def step(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
            view = z.conj()
            (view if whole else view[1:]).mul_(2 + 1j)
            return view.real * 1, view.imag * 1, z.imag * 1, view.contiguous(), torch.view_as_real(z) * 1

        return step

    z = torch.randn(3, 4, dtype=torch.complex128)
    for step in (write(True), write(False)):
        compiled = tracer.compile(step, backend="replay")
        for values in (z, z + 1):
            ours, theirs = compiled(values.clone()), step(values.clone())
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b)


def test_a_backend_may_lay_out_what_comes_before_a_view_anew() -> None:
    """It gets a view that copies where it has to; the graph that is exported has the views of the step."""
    model = mlp()
    targets = set()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        targets.update(node.target for node in graph.graph.nodes)
        return graph.forward

    def step(x: torch.Tensor) -> None:
        model(x).view(-1).square().sum().backward()

    tracer.compile(step, backend=backend, check=True)(torch.randn(5, 4))
    assert torch.ops.aten.view.default not in targets and torch.ops.aten.reshape.default in targets
    exported = tracer.export_graph(step, torch.randn(5, 4)).graph
    assert torch.ops.aten.view.default in {node.target for node in exported.nodes}


def test_a_plain_argument_may_be_made_to_require_grad_inside() -> None:
    model = mlp()
    twin = copy.deepcopy(model)

    def step_of(model: Any) -> Callable[[torch.Tensor], None]:
        def step(x: torch.Tensor) -> None:
            y = checkpoint(lambda x: model(x), x.requires_grad_(), use_reentrant=True)
            (y.square().sum() + x.square().sum()).backward()

        return step

    compiled, eager = tracer.compile(step_of(model), backend="replay"), step_of(twin)
    for _ in range(2):
        ours = torch.randn(5, 4)
        theirs = ours.clone()
        compiled(ours)
        eager(theirs)
        torch.testing.assert_close(ours.grad, theirs.grad)
        assert_same_gradients(model, twin)
