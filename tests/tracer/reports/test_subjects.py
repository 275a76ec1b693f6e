"""Every report refuses what it is not about, and says what to pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.leaves import leaf32

import nn
import tracer

#: Every report as ``ask(graph, loss, tensor)``, and which of these it takes.
REPORTS: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "memory": (lambda g, loss, x: tracer.memory(g), "graph"),
    "explain": (lambda g, loss, x: tracer.explain(g), "graph"),
    "draw": (lambda g, loss, x: tracer.draw(g), "graph"),
    "audit": (lambda g, loss, x: tracer.audit(g), "graph"),
    "repeats": (lambda g, loss, x: tracer.repeats(g), "graph"),
    "fingerprint": (lambda g, loss, x: tracer.fingerprint(g), "graph"),
    "compare": (lambda g, loss, x: tracer.compare(g, g), "graph"),
    "find_nan": (lambda g, loss, x: tracer.find_nan(g, loss), "graph loss native"),
    "conservation": (lambda g, loss, x: tracer.conservation(loss, g), "graph loss native"),
    "why": (lambda g, loss, x: tracer.why(x, loss, g), "graph loss-or-number tensor"),
    "path": (lambda g, loss, x: tracer.path(x, loss, g), "graph-or-none tensor"),
    "steps": (lambda g, loss, x: tracer.steps(loss), "loss"),
    "timings": (lambda g, loss, x: tracer.timings(loss), "loss"),
    "contributions": (lambda g, loss, x: tracer.contributions(x, loss), "loss tensor"),
}


def asking(*roles: str) -> list[str]:
    return [name for name, (_, takes) in REPORTS.items() if set(roles) & set(takes.split())]


def recorded() -> tuple[tracer.Graph, torch.Tensor, torch.Tensor]:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(sites=True, finite=True, values=True) as graph:
        loss = (x * x).sum()
    return graph, loss, x


@pytest.mark.parametrize("name", REPORTS)
def test_what_it_is_about_is_answered(name: str) -> None:
    graph, loss, x = recorded()
    assert REPORTS[name][0](graph, loss, x) is not None


@pytest.fixture(scope="module")
def chain() -> tuple[tracer.Graph, torch.Tensor, torch.Tensor]:
    """Three times as many calls, one after the other, as Python lets functions call one another."""
    x = leaf32(0.5, 1.5)
    with tracer.Graph(sites=True, finite=True, values=True) as graph:
        y: torch.Tensor = x
        for _ in range(sys.getrecursionlimit()):
            y = (y * 1.5).tanh() + x
        loss = y.sum()
    return graph, loss, x


@pytest.mark.parametrize("name", REPORTS)
def test_a_long_chain_of_calls_is_answered_without_recursion(
    name: str, chain: tuple[tracer.Graph, torch.Tensor, torch.Tensor]
) -> None:
    answer = REPORTS[name][0](*chain)
    told = [str(step) for step in answer] if isinstance(answer, Iterator) else [str(answer)]
    assert all(told)


@pytest.mark.parametrize("wrong", [torch.ones(2), leaf32(1.0) * 2, torch.nn.Linear(2, 2), "graph", 3, [1]], ids=str)
@pytest.mark.parametrize("name", asking("graph", "graph-or-none"))
def test_what_is_no_graph_is_refused(name: str, wrong: Any) -> None:
    _, loss, x = recorded()
    with pytest.raises(tracer.ReportError, match=rf"^{name}\(\) was given .*[Gg]raph"):
        REPORTS[name][0](wrong, loss, x)


@pytest.mark.parametrize("name", asking("graph"))
def test_none_is_no_graph(name: str) -> None:
    _, loss, x = recorded()
    with pytest.raises(tracer.ReportError, match=rf"^{name}\(\) was given "):
        REPORTS[name][0](None, loss, x)


def test_a_tensor_in_the_place_of_a_graph_is_told_how_to_get_its_graph() -> None:
    with pytest.raises(tracer.ReportError, match=r"was given a Tensor for the graph.*graph_of\(loss\)"):
        tracer.memory(leaf32(1.0) * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [recorded()[0], torch.nn.Linear(2, 2), "loss", {"loss": 1}, [], [3.0]], ids=str)
@pytest.mark.parametrize("name", asking("loss", "loss-or-number"))
def test_what_is_no_loss_is_refused(name: str, wrong: Any) -> None:
    graph, _, x = recorded()
    with pytest.raises(tracer.ReportError, match=rf"^{name}\(\) was given .* for the loss\. It takes a tensor"):
        REPORTS[name][0](graph, wrong, x)


@pytest.mark.parametrize("name", asking("loss"))
def test_a_loss_without_a_history_is_refused(name: str) -> None:
    graph, loss, x = recorded()
    for wrong in (torch.ones(()), loss.detach()):
        with pytest.raises(tracer.UnrecordedError, match=rf"^{name}\(\) was given a loss of shape \(\).*no history"):
            REPORTS[name][0](graph, wrong, x)


@pytest.mark.parametrize("name", asking("native"))
def test_a_loss_of_torchs_own_autograd_is_refused_where_nothing_of_it_could_be_seen(name: str) -> None:
    graph, _, x = recorded()
    native = torch.ones(2, requires_grad=True).sum()
    with pytest.raises(tracer.UnrecordedError, match=r"torch's own autograd.*nn\.track\(model\)"):
        REPORTS[name][0](graph, native, x)


@pytest.mark.parametrize("wrong", [recorded()[0], "weight", None, [leaf32(1.0)]], ids=str)
@pytest.mark.parametrize("name", asking("tensor"))
def test_what_is_no_tensor_is_refused(name: str, wrong: Any) -> None:
    graph, loss, _ = recorded()
    with pytest.raises(tracer.ReportError, match=rf"^{name}\(\) was given .*It takes a tensor"):
        REPORTS[name][0](graph, loss, wrong)


def test_a_model_without_parameters_is_refused() -> None:
    graph, loss, _ = recorded()
    with pytest.raises(tracer.ReportError, match=r"a ReLU, which has no parameters"):
        tracer.why(torch.nn.ReLU(), loss, graph)


def test_a_model_that_nobody_tracks_is_called_that() -> None:
    graph, loss, _ = recorded()
    answer = tracer.why(torch.nn.Linear(2, 2), loss, graph)
    assert {row.cause for row in answer.rows} == {"untracked"} and "nn.track" in str(answer)


def test_what_the_timed_function_returns_is_looked_at() -> None:
    model = nn.track(torch.nn.Linear(2, 2))
    with pytest.raises(tracer.ReportError, match="was given a str for the loss"):
        tracer.timings(lambda: "loss")  # type: ignore[arg-type, return-value]
    with pytest.raises(tracer.ReportError, match=r"a Linear for the loss.*call the module"):
        tracer.timings(model)


def test_timings_that_are_none_are_refused() -> None:
    graph, _, _ = recorded()
    with pytest.raises(tracer.ReportError, match=r"a list for timings.*tracer\.timings"):
        tracer.repeats(graph, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [3, None, recorded()[0]], ids=str)
def test_a_backward_pass_by_other_rules_refuses_what_is_no_tensor(wrong: Any) -> None:
    _, loss, x = recorded()
    with pytest.raises(tracer.UnsupportedError, match=f"got {type(wrong).__name__}"):
        tracer.replay(wrong, x)
    with pytest.raises(tracer.UnsupportedError, match=f"got {type(wrong).__name__}"):
        tracer.replay(loss, wrong)
