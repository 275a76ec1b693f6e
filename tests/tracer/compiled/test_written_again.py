"""A replayed graph writes in place what nobody reads again, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import nn
import tracer
from tracer.compiled.functional import functionalised
from tracer.compiled.replay import Replay
from tracer.compiled.written_again import written_again

A, B = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4) + 1


def graph_of(function: Callable[..., torch.Tensor]) -> torch.fx.GraphModule:
    """The graph of values of ``function(A, B)``."""
    functional = functionalised(lambda given: [function(*given)], [])
    module = make_fx(functional, tracing_mode="fake")(A, B)
    module.graph.eliminate_dead_code()
    return module


def names_in(graph: torch.fx.Graph) -> set[str]:
    return {node.target._opname for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}


def filled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(4, 3, 4)
    for i in range(4):
        a = a * 2
        buffer[i] = a
        buffer[i, :2, 1:] = b[:2, 1:]
    return buffer


def two_versions(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    buffer = a * 2
    before = buffer.clone()
    buffer[0] = b[0]
    return before + buffer


CASES: dict[str, tuple[Callable[..., torch.Tensor], set[str], set[str]]] = {
    # function, ops that are there in place, ops that are not
    "a buffer filled step by step": (filled, {"copy_"}, {"select_scatter"}),
    "a diagonal": (lambda a, b: (a * 2).diagonal().add_(1) * 1 + b.diagonal(), set(), set()),
    "a sum of two values": (lambda a, b: a.exp() + b.exp(), {"add_"}, {"add"}),
    "a sum with an input first": (lambda a, b: a + b.exp(), {"add_"}, {"add"}),
    "a difference with an input first": (lambda a, b: a - b.exp(), {"sub"}, {"sub_"}),
    "two inputs": (lambda a, b: a + b, {"add"}, {"add_"}),
    "a view of an input": (lambda a, b: a.t().t() + 1, {"add"}, {"add_"}),
    "a value that is read later": (lambda a, b: (c := a.exp()) * 2 + c * 3, {"mul", "mul_", "add_"}, {"add"}),
    "a value whose view is read later": (lambda a, b: ((c := a.exp()) * 2) + c.view(4, 3).view(3, 4), set(), set()),
    "a value with itself": (lambda a, b: (c := a.exp()) * c, {"mul"}, {"mul_"}),
    "a value with its own transpose": (lambda a, b: (c := (a @ b.t())) + c.t(), {"add"}, {"add_"}),
    "a value that is spread": (lambda a, b: a.sum(1, keepdim=True).expand(3, 4) * 2, {"mul"}, {"mul_"}),
    "a smaller value first": (lambda a, b: a.sum(1, keepdim=True) - b, {"sub"}, {"sub_"}),
    "another dtype": (lambda a, b: a.int().exp().half() + b, {"add"}, {"add_"}),
    "a buffer that is read before the write": (two_versions, {"copy_", "add_"}, {"select_scatter"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_nobody_reads_again_is_written_over(name: str) -> None:
    function, there, gone = CASES[name]
    module = graph_of(function)
    before = A.clone(), B.clone()
    torch.testing.assert_close(Replay(module)(A, B)[0], function(A.clone(), B.clone()), rtol=0, atol=0)
    assert torch.equal(A, before[0]) and torch.equal(B, before[1])
    found = names_in(written_again(module.graph))
    assert there <= found and not gone & found


def test_a_result_is_not_written_over_by_another() -> None:
    def both(given: list[torch.Tensor]) -> list[torch.Tensor]:
        first = given[0].exp()
        return [first, first + 1, first.view(-1)[:2]]

    module = make_fx(functionalised(both, []), tracing_mode="fake")(A)
    first, second, third = Replay(module)(A)
    assert torch.equal(first, A.exp()) and torch.equal(second, A.exp() + 1) and torch.equal(third, A.exp().view(-1)[:2])


def test_the_exported_graph_keeps_its_values() -> None:
    model = nn.track(torch.nn.Linear(4, 4))

    def step(x: torch.Tensor) -> None:
        buffer = torch.zeros(2, 3, 4)
        buffer[0] = model(x)
        buffer[1] = model(model(x))
        buffer.square().sum().backward()

    names = names_in(tracer.export_graph(step, A).graph)
    assert not {"add_", "mul_", "copy_"} & names and "select_scatter" in names
