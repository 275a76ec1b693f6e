"""``tracer.audit``: which rule each call of a graph will use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.custom import mystery
from support.functions import Double

import nn
import ops_registry
import tracer


def leaf(*shape: int) -> torch.Tensor:
    return tracer.tensor(torch.randn(*shape), requires_grad=True)


def guided(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return grad.clamp(min=0) * (result > 0)


def lines_of(function: Callable[..., Any]) -> str:
    return f"test_audit.py:{function.__code__.co_firstlineno}"


def test_every_call_is_counted_with_its_rule_and_where_that_is_written() -> None:
    x = leaf(3)
    loss = (x.tanh() + x.tanh()).sum()
    report = tracer.audit(tracer.graph_of(loss))
    rows = {row.op: row for row in report}
    assert {op: row.count for op, row in rows.items()} == {"tanh": 2, "add": 1, "sum": 1}
    assert rows["tanh"].status == "shipped" and "trigonometric.py:" in rows["tanh"].rule
    assert "4 shipped" in report.verdict


def test_a_replaced_rule_is_told_from_a_shipped_one() -> None:
    x = leaf(3)
    with ops_registry.use({torch.relu: guided}):
        y = x.relu()
    loss = (y + x.relu()).sum()
    report = tracer.audit(tracer.graph_of(loss))
    first = report.rows[0]
    assert (first.op, first.status, first.count, first.wraps) == ("relu", "replaced", 1, False)
    assert lines_of(guided) in first.rule and lines_of(guided) in str(report)


def test_a_rule_that_asks_for_default_wraps() -> None:
    with ops_registry.use({torch.relu: lambda grad, default: default(grad) * 2}):
        y = leaf(3).relu()
    assert tracer.audit(tracer.graph_of(y), torch.relu).rows[0].wraps


def test_a_registered_rule_is_the_users_own(clean_registry: None) -> None:
    @ops_registry.backward(torch.erf, replace=True)
    def mine(grad: torch.Tensor) -> torch.Tensor:
        return grad

    loss = leaf(3).erf().sum()
    (row,) = tracer.audit(tracer.graph_of(loss), ["erf"])
    assert row.status == "registered" and "mine" in row.rule and lines_of(mine) in row.rule


def test_a_rule_replaced_for_one_input_only_leaves_the_calls_that_want_the_other() -> None:
    x, w = leaf(2, 3), leaf(4, 3)
    with ops_registry.use({F.linear: {"weight": lambda grad, input: grad.T @ input}}):
        loss = F.linear(x, torch.ones(4, 3)).sum() + F.linear(torch.ones(2, 3), w).sum()
    report = tracer.audit(tracer.graph_of(loss), F.linear)
    assert sorted((row.status, row.count) for row in report) == [("replaced", 1), ("shipped", 1)]


@pytest.mark.parametrize("op", ["relu", torch.relu, F.relu, torch.Tensor.relu_, torch.ops.aten.relu.default])
def test_calls_that_a_scope_left_out_are_missing_with_their_sites(op: Any) -> None:
    net = nn.track(torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(3)]))
    with ops_registry.use({torch.relu: guided}, where="1"), tracer.Graph(sites=True) as graph:
        loss = net(leaf(3)).sum()
    missing = tracer.audit(graph).missing(op)
    assert [row.site.module for row in missing] == ["0", "2"]  # type: ignore[union-attr]
    assert "2 of 3 calls" in str(missing) and "activations.py" in missing.rows[0].rule
    del loss


def test_without_a_name_missing_asks_about_every_op_with_a_replaced_rule() -> None:
    x = leaf(3)
    with ops_registry.use({torch.relu: guided}):
        y = x.relu()
    loss = (y + x.relu() + x.tanh()).sum()
    found = tracer.audit(tracer.graph_of(loss)).missing()
    assert [row.op for row in found] == ["relu"]


def test_an_op_that_never_ran_is_said_with_where_it_hides() -> None:
    q = leaf(1, 2, 3, 4)
    loss = F.scaled_dot_product_attention(q, q, q).sum()
    report = tracer.audit(tracer.graph_of(loss), torch.softmax)
    assert report.rows == [] and "softmax runs inside scaled_dot_product_attention, 1 call" in str(report)
    assert "runs inside scaled_dot_product_attention" in str(report.missing(torch.softmax))


def test_a_function_that_torch_composes_is_said_to_be_made_of_others() -> None:
    loss = F.normalize(leaf(2, 3)).sum()
    assert "made of other ops" in str(tracer.audit(tracer.graph_of(loss), F.normalize))


def test_calls_inside_vmap_count() -> None:
    x = leaf(2, 3)
    loss = torch.vmap(lambda row: row.tanh())(x).sum()
    ops = {row.op for row in tracer.audit(tracer.graph_of(loss))}
    assert {"tanh", "vmap", "sum"} <= ops


def test_calls_without_a_rule_come_first() -> None:
    class Own(Double):
        """By another name."""

    loss = (Own.apply(leaf(3)) + mystery(leaf(3))).sum()
    rows = tracer.audit(tracer.graph_of(loss)).rows
    assert rows[0].status == "none"
    assert next(row.status for row in rows if row.op == "Own") == "own backward"


def test_overloads_of_one_function_are_asked_for_together() -> None:
    x = leaf(2, 3)
    loss = x.max() + x.max(dim=0).values.sum()
    assert sum(row.count for row in tracer.audit(tracer.graph_of(loss), torch.max)) == 2


def test_the_report_is_text_and_plain_values() -> None:
    x = leaf(3)
    with tracer.Graph(sites=True) as graph:
        loss = x.tanh().sum()
    report = tracer.audit(graph)
    assert json.loads(json.dumps(report.to_dict()))["rows"][0]["sites"][0]["line"].rpartition(":")[0] == __file__
    assert "test_audit.py:" in str(report) and len(report) == 2
    del loss


def test_a_graph_whose_calls_are_gone_says_so() -> None:
    with tracer.Graph() as graph:
        leaf(3).tanh()
    assert "Keep the loss" in str(tracer.audit(graph))


def test_what_is_no_op_is_refused() -> None:
    with pytest.raises(ops_registry.RuleError):
        tracer.audit(tracer.graph_of(leaf(3).sum()), [3])  # type: ignore[list-item]
