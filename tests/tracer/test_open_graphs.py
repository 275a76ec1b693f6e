"""A graph that stays open over a training loop, and what several graphs are to one another."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from support.leaves import leaf32

import nn
import tracer
from tracer.notes import calls, cuts
from tracer.notes.calls import KEPT_CALLS
from tracer.notes.cuts import asked, noting


def test_a_training_loop_under_a_graph_keeps_its_memory_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "KEPT_CALLS", 256)
    monkeypatch.setattr(cuts, "KEPT_CUTS", 64)
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(8, 4)

    def most_of(steps: int) -> int:
        tracemalloc.reset_peak()
        for _ in range(steps):
            loss = model(data).square().mean()
            loss.backward()
            loss.detach().item()
            optimiser.step()
            optimiser.zero_grad()
        return tracemalloc.get_traced_memory()[1]

    with tracer.Graph(sites=True, finite=True, values=True) as graph:
        tracemalloc.start()
        try:
            before = most_of(1000)
            after = most_of(1000)
        finally:
            tracemalloc.stop()
        assert len(graph.calls()) <= 513 and len(graph.cuts()) == 64
    assert after - before < 50_000


def test_a_leaf_has_one_number_over_all_steps() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as graph:
        for _ in range(3):
            x.exp().sum().backward()
    assert {call.parents for call in graph.calls() if call.op == "exp"} == {(x._node.serial,)}  # type: ignore[union-attr]


def test_all_alive_calls_are_noted_however_many() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as graph:
        y = x
        for _ in range(3 * KEPT_CALLS):
            y = y * 1  # type: ignore[assignment]
    noted = graph.calls()
    assert len(noted) == 3 * KEPT_CALLS and all(call.alive for call in noted)


def test_nothing_is_asked_once_the_last_graph_is_closed() -> None:
    with tracer.Graph(sites=True):
        assert asked.graphs == 1 and noting.cuts is not None
    assert asked.graphs == 0 and noting.cuts is None
