"""``tracer.audit``: which rule each call will use."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.custom import mystery, ten_times
from support.leaves import leaf

import nn
import ops_registry
import tracer


def doubled(grad, default):
    return 2 * default(grad)


def model() -> torch.nn.Module:
    return nn.track(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Softmax(0))))


def test_each_rule_has_a_row_with_its_file_and_count() -> None:
    with tracer.Graph() as graph:
        y = leaf(1.0).exp().exp().sum()
    first, second = tracer.audit(graph).rows
    assert (first.op, first.count, first.kind) == ("exp", 2, "shipped")
    assert first.rule == ops_registry.lookup(torch.exp).location  # type: ignore[union-attr]
    assert (second.op, second.count) == ("sum", 1) and y.requires_grad


def test_a_replaced_rule_is_told_from_a_shipped_one_and_named_with_its_line() -> None:
    with tracer.Graph(sites=True) as graph, ops_registry.use({torch.tanh: doubled}, where="1"):
        y = model()(leaf(1.0))
    found = {row.kind: row for row in tracer.audit(graph, torch.tanh)}
    assert set(found) == {"shipped", "replaced, wraps default"}
    code = doubled.__code__
    assert found["replaced, wraps default"].rule == f"{code.co_filename}:{code.co_firstlineno}"
    assert [site.module for site in found["shipped"].sites] == ["0"] and y.requires_grad


@pytest.mark.parametrize("op", ["tanh", torch.tanh, F.tanh, torch.Tensor.tanh_])
def test_missing_gives_the_calls_that_a_scope_left_out(op) -> None:
    with tracer.Graph(sites=True) as graph, ops_registry.use({torch.tanh: doubled}, where="1"):
        y = model()(leaf(1.0))
    assert [site.module for site in tracer.audit(graph).missing(op)] == ["0"] and y.requires_grad  # type: ignore[union-attr]


def test_a_rule_replaced_for_another_input_than_the_wanted_one_is_not_said_to_be_used() -> None:
    with tracer.Graph() as graph, ops_registry.use({torch.mul: {"other": ten_times}}, expect=None):
        y = leaf(1.0) * torch.ones(1)
    assert [row.kind for row in tracer.audit(graph)] == ["shipped"] and y.requires_grad


@pytest.mark.usefixtures("clean_registry")
def test_a_rule_of_the_users_own_is_registered() -> None:
    ops_registry.backward(mystery)(ten_times)
    with tracer.Graph() as graph:
        y = mystery(leaf(1.0))
    assert [row.kind for row in tracer.audit(graph)] == ["registered"] and y.requires_grad


def test_a_call_without_a_rule_has_none() -> None:
    with tracer.Graph() as graph:
        y = mystery(leaf(1.0))
    assert [row.kind for row in tracer.audit(graph)] == ["none"] and y.requires_grad


def test_a_function_of_the_users_has_its_own() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    with tracer.Graph() as graph:
        y = Double.apply(leaf(1.0))
    assert [row.kind for row in tracer.audit(graph)] == ["its own"] and y.requires_grad


def test_an_op_that_hides_in_another_is_found_there() -> None:
    q = leaf(*range(8)).view(1, 1, 4, 2)
    with tracer.Graph() as graph:
        y = F.scaled_dot_product_attention(q, q, q)
    report = tracer.audit(graph, ["softmax", F.gelu])
    assert not report.rows and y.requires_grad
    assert "softmax runs inside scaled_dot_product_attention, 1 call" in str(report)
    assert "gelu was not called" in str(report)


def test_the_graph_of_a_result_is_audited_as_well() -> None:
    with ops_registry.use({torch.tanh: ten_times}):
        y = leaf(1.0).tanh().exp()
    assert [(row.op, row.kind) for row in tracer.audit(tracer.graph_of(y))] == [
        ("tanh", "replaced"),
        ("exp", "shipped"),
    ]


def test_the_verdict_counts_the_calls_by_kind() -> None:
    with tracer.Graph() as graph, ops_registry.use({torch.tanh: ten_times}):
        y = leaf(1.0).tanh().exp().sum()
    assert str(tracer.audit(graph)).startswith("3 calls by the kind of their rule: 1 replaced, 2 shipped.")
    assert y.requires_grad
