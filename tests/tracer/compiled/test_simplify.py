"""The captured graph made smaller computes the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import nn
import tracer


def each_step(x: torch.Tensor) -> torch.Tensor:
    states = x.new_zeros(4, 3)
    h = x.new_zeros(3)
    for t, now in enumerate(x.unbind()):
        h = (h + now).tanh()
        states[t] = h
    return states


def some_twice(x: torch.Tensor) -> torch.Tensor:
    states = x * 2
    for t in (0, 2, -3, 1, 2):
        states[t] = (states[t] + states[t - 1]).sin()
    return states


def another_dimension(x: torch.Tensor) -> torch.Tensor:
    states = x * 2
    for t in range(3):
        states[:, t] = states[t].sum() * states[:, t - 1].exp()
    return states


def parts(x: torch.Tensor) -> torch.Tensor:
    states = x.new_zeros(4, 3, dtype=torch.float64)
    states[1:3, ::2] = x[:2, :2].exp()
    states[0] = states[1].exp() * x[3].double()
    return states.float()


def read_once(x: torch.Tensor) -> torch.Tensor:
    states = x * 2
    states[0] = x[1].exp()
    last = states[1] * 3
    return states * 2 + last


def read_as_views(x: torch.Tensor) -> torch.Tensor:
    states = x * 1
    first = states[0]
    states[1] = x[2].exp()
    return torch.cat([first.view(3, 1), states[0].view(3, 1), states[1].view(3, 1)], 1)


WRITES = [each_step, some_twice, another_dimension, parts, read_once, read_as_views]


def step_of(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.nn.Linear, Callable[[torch.Tensor], torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.track(torch.nn.Linear(3, 3))

    def step(x: torch.Tensor) -> torch.Tensor:
        value = function(model(x))
        (value * torch.arange(value.numel()).view_as(value)).sum().backward()
        return value

    return model, step


@pytest.mark.parametrize("function", WRITES)
def test_a_compiled_step_that_writes_into_parts_computes_as_eager(function: Callable[..., torch.Tensor]) -> None:
    x = torch.arange(12.0).view(4, 3) / 10
    model, step = step_of(function)
    twin, eager = step_of(function)
    assert torch.equal(tracer.compile(step, modules=[model], backend="replay")(x), eager(x))
    for (name, mine), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad), name  # type: ignore[arg-type]


def test_the_gradient_of_states_written_in_a_loop_is_never_copied() -> None:
    model, step = step_of(each_step)
    graph = tracer.export_graph(step, torch.ones(4, 3), modules=[model]).graph
    names = [node.target._opname for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert names.count("select_scatter") == 4 and not {"copy", "fill"} & set(names)
