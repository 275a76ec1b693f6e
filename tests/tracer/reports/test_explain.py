"""``explain``: the calls of a graph by module, in rows that add up."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from support.blocks import language_graph

import nn
import tracer
from tracer.reports.explain import Explanation
from tracer.reports.summary import SummaryRow


def row(report: Explanation, name: str) -> SummaryRow:
    found = [row for row in report.rows if row.name == name]
    assert len(found) == 1, [row.name for row in report.rows]
    return found[0]


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
def test_the_rows_of_the_first_level_add_up_to_the_graph(depth: int) -> None:
    graph, loss = language_graph(False, True, False)
    rows = [row for row in tracer.explain(graph, depth).rows if row.level == 1]
    assert sum(row.kept_bytes for row in rows) == graph.kept_bytes() > 0
    assert sum(row.calls for row in rows) == len(graph)
    counts: dict[str, int] = {}
    for r in rows:
        for op, count in r.ops.items():
            counts[op] = counts.get(op, 0) + count
    assert counts == graph.counts()
    del loss


def test_the_rows_one_level_down_add_up_to_the_row_above() -> None:
    graph, loss = language_graph(False, True, False)
    rows = tracer.explain(graph, 9).rows
    for i, above in enumerate(rows):
        below = []
        for r in rows[i + 1 :]:
            if r.level <= above.level:
                break
            if r.level == above.level + 1:
                below.append(r)
        if below:
            assert sum(r.kept_bytes for r in below) == above.kept_bytes
            assert sum(r.calls for r in below) == above.calls
            assert sum(r.parameters for r in below) == above.parameters
    del loss


def test_equal_blocks_are_one_row() -> None:
    graph, loss = language_graph(False, False, False)
    report = tracer.explain(graph, 1)
    blocks = row(report, "layers.0 .. layers.2: 3 times")
    assert blocks.times == 3 and blocks.calls % 3 == 0 and blocks.ops["layer_norm"] == 3
    assert f"3 x {blocks.calls // 3}" in str(report)
    assert [r.name for r in report.rows] == ["embed", "layers.0 .. layers.2: 3 times", "head", "(top level)"]
    del loss


def test_depth_shows_what_is_inside() -> None:
    graph, loss = language_graph(False, False)
    names = [(r.level, r.name) for r in tracer.explain(graph, 3).rows]
    assert (2, "attention") in names and (3, "qkv") in names and (3, "(own calls)") in names
    assert max(level for level, _ in names) == 3
    del loss


def test_parameters_are_those_of_the_model_and_shared_ones_count_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(7, 3)
            self.head = torch.nn.Linear(3, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))

    model = nn.track(Tied())
    with tracer.Graph(sites=True) as graph:
        y = model(torch.tensor([1, 2]))
    report = tracer.explain(graph)
    assert (row(report, "embed").parameters, row(report, "head").parameters) == (21, 0)
    del y


def test_the_shape_of_a_module_is_that_of_its_last_result() -> None:
    graph, loss = language_graph(False)
    assert row(tracer.explain(graph, 1), "head").shape == (2, 5, 30)
    assert row(tracer.explain(graph, 2), "attention").shape == (2, 5, 16)
    del loss


def test_without_sites_the_rows_are_by_op_and_the_advice_says_how_to_have_modules() -> None:
    x = tracer.tensor(torch.ones(8), requires_grad=True)
    with tracer.Graph() as graph:
        y = (x.exp() * x).exp().sum()
    report = tracer.explain(graph)
    assert {r.name: r.calls for r in report.rows} == {"exp": 2, "mul": 1, "sum": 1}
    assert sum(r.kept_bytes for r in report.rows) == graph.kept_bytes()
    assert "tracer.Graph(sites=True)" in str(report)
    del y


def test_a_graph_that_notes_calls_and_no_sites_is_explained_by_op() -> None:
    x = tracer.tensor(torch.ones(8), requires_grad=True)
    with tracer.Graph(finite=True) as graph:
        y = x.exp().sin()
    for y_or_none in (y, None):
        y = y_or_none
        report = tracer.explain(graph)
        assert {r.name: r.calls for r in report.rows} == {"exp": 1, "sin": 1} and "sites=True" in str(report)


def test_calls_that_are_gone_are_told_of_where_none_is_alive() -> None:
    graph, loss = language_graph(False, False)
    alive = tracer.explain(graph)
    del loss
    gone = tracer.explain(graph)
    assert [(r.name, r.calls) for r in gone.rows] == [(r.name, r.calls) for r in alive.rows]
    assert sum(r.kept_bytes for r in gone.rows) == 0 and "gone" in str(gone)


def test_calls_that_are_gone_are_counted_beside_those_alive() -> None:
    x = tracer.tensor(torch.ones(8), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        x.exp()
        y = x.sin()
    report = tracer.explain(graph)
    assert [r.ops for r in report.rows] == [{"sin": 1}] and "1 call that is gone" in str(report)
    del y


def test_after_backward_it_says_why_little_is_kept() -> None:
    graph, loss = language_graph(False)
    assert "retain_graph" not in str(tracer.explain(graph))
    loss.backward(retain_graph=True)
    assert "retain_graph" not in str(tracer.explain(graph))
    loss.backward()
    assert "retain_graph" in str(tracer.explain(graph)) and "retain_graph" in str(tracer.draw(graph))


def test_an_empty_graph_is_explained_too() -> None:
    report = tracer.explain(tracer.Graph(sites=True))
    assert report.rows == [] and "0 calls" in str(report)


def test_the_graph_of_a_result_shows_the_modules_that_were_noted() -> None:
    graph, loss = language_graph(False)
    found = tracer.explain(tracer.graph_of(loss))
    assert [r.name for r in found.rows] == [r.name for r in tracer.explain(graph).rows]


def test_a_long_chain_of_calls_is_explained_and_drawn_without_recursion() -> None:
    y = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        for _ in range(10 * sys.getrecursionlimit()):
            y = y * 1.0
    report = tracer.explain(graph)
    assert [(r.name, r.calls) for r in report.rows] == [("(top level)", 10 * sys.getrecursionlimit())]
    assert "<script>" in report.to_html()


def test_modules_in_modules_are_explained_and_drawn_however_deep() -> None:
    model: torch.nn.Module = torch.nn.Tanh()
    for _ in range(150):
        model = torch.nn.Sequential(model)
    nn.track(model)
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        y = model(x)
    report = tracer.explain(graph, 1000)
    assert [r.level for r in report.rows] == list(range(1, 151))
    assert tracer.draw(graph).to_mermaid().count("subgraph") == 149
    del y


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(tracer.ReportError, match="depth=0"):
        tracer.explain(tracer.Graph(), 0)


def test_a_report_holds_no_tensor() -> None:
    graph, loss = language_graph(False)
    report = tracer.explain(graph)
    kept = graph.kept_bytes()
    del loss
    assert kept > 0 and len(graph) == 0 and report.rows


def test_the_dictionary_can_be_written_as_json() -> None:
    graph, loss = language_graph(False, False)
    told = json.loads(json.dumps(tracer.explain(graph).to_dict()))
    blocks = next(r for r in told["rows"] if r["times"] == 2)
    assert blocks["module"] == "layers.0" and blocks["ops"]["layer_norm"] == 2
    del loss
