"""``tracer.Graph(sites=True)``: every call with its line, its module and what it took its inputs from, also once it is gone."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from support.leaves import leaf32

import nn
import tracer
from tracer.notes.calls import KEPT_CALLS


def here() -> str:
    """``file.py:line`` of the caller."""
    frame: Any = inspect.currentframe()
    return f"test_sites.py:{frame.f_back.f_lineno}"


def test_every_call_has_the_users_line() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as graph:
        y, line = torch.nn.functional.softsign(x), here()
    assert len(graph) > 1
    assert all(graph.site_of(node).line.endswith(line) for node in graph)  # type: ignore[union-attr]
    del y


def test_a_call_has_the_path_of_its_module() -> None:
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Tanh())))
    with tracer.Graph(sites=True) as graph:
        y = model(torch.ones(1, 2))
    assert [(call.op, call.site.module) for call in graph.calls()] == [("linear", "0"), ("tanh", "1.0")]
    del y


def test_calls_that_are_gone_are_there_and_say_so() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as graph:
        x.exp()
        y = x * 2
    assert [(call.op, call.alive) for call in graph.calls()] == [("exp", False), ("mul", True)]
    del y


def test_a_call_names_the_calls_and_leaves_that_it_took_its_inputs_from() -> None:
    x, w = leaf32(1.0, 2.0), leaf32(1.0, 2.0)
    with tracer.Graph(sites=True) as graph:
        a, b = (x * w).unbind()
        y = torch.stack([a, b])
    mul, unbind, stack = graph.calls()
    assert mul.parents == (x._node.serial, w._node.serial)  # type: ignore[attr-defined]
    assert unbind.parents == (mul.serial,) and stack.parents == (unbind.serial, unbind.serial)
    del y


def test_site_of_a_result_is_that_of_its_call_and_a_leaf_has_none() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(sites=True) as graph:
        a, _ = x.unbind()
    assert graph.site_of(a._node).op == "unbind"  # type: ignore[attr-defined, union-attr]
    assert graph.site_of(x._node) is None  # type: ignore[attr-defined]


def test_a_graph_without_sites_has_no_calls_to_show_and_says_how_to_note_them() -> None:
    x = leaf32(1.0)
    with tracer.Graph() as graph:
        y = x * 2
    assert graph.site_of(y._node) is None  # type: ignore[attr-defined]
    with pytest.raises(tracer.NotNotedError, match=r"tracer\.Graph\(sites=True\)"):
        graph.calls()


def test_notes_of_calls_that_are_gone_are_bounded() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as graph:
        for _ in range(3 * KEPT_CALLS):
            x * 2
        y = x.exp()
    calls = graph.calls()
    assert KEPT_CALLS <= len(calls) <= 2 * KEPT_CALLS + 1
    assert calls[-1].op == "exp" and calls[-1].alive
    del y


def test_notes_keep_no_tensor_and_no_node_alive() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as graph:
        y = x.exp().exp()
        del y
        assert len(graph) == 0 and len(graph.calls()) == 2


def test_an_error_of_the_engine_names_the_line_and_the_module() -> None:
    class Overwrites(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.exp()
            y.data.add_(1)
            y.detach().add_(1)
            return y

    model = nn.track(torch.nn.Sequential(torch.nn.Identity(), Overwrites()))
    with tracer.Graph(sites=True):
        y = model(leaf32(1.0))
    with pytest.raises(tracer.OverwrittenError, match=r"exp .*called at .*test_sites\.py:\d+ in 1, saved"):
        y.sum().backward()


def test_without_sites_an_error_of_the_engine_says_how_to_turn_them_on() -> None:
    y = leaf32(1.0).exp()
    y.detach().add_(1)
    with pytest.raises(tracer.OverwrittenError, match=r"tracer\.Graph\(sites=True\)"):
        y.sum().backward()
