"""``use(expect=...)``: proof that a replaced rule was applied, and why it was not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.custom import ten_times
from support.leaves import leaf

import ops_registry
import tracer
from ops_registry.registry import RULES
from ops_registry.unused import HIDDEN_IN

both = {torch.tanh: ten_times, torch.exp: ten_times}


def test_a_block_whose_rules_never_applied_names_the_ops_that_ran() -> None:
    with (
        pytest.raises(
            ops_registry.UnusedRuleError, match=r"rule for tanh was never applied.*These ops were called: exp, sum"
        ),
        ops_registry.use({torch.tanh: ten_times}),
    ):
        leaf(1.0).exp().sum()


def test_inside_a_graph_the_calls_are_counted() -> None:
    with (
        tracer.Graph(),
        pytest.raises(ops_registry.UnusedRuleError, match="These ops were recorded: exp x2, sum x1"),
        ops_registry.use({torch.tanh: ten_times}),
    ):
        loss = leaf(1.0).exp().exp().sum()
    assert loss.requires_grad


def test_an_op_that_hides_in_another_is_found_there() -> None:
    q = leaf(*range(8)).view(1, 1, 4, 2)
    with (
        tracer.Graph(),
        pytest.raises(
            ops_registry.UnusedRuleError, match="softmax runs inside scaled_dot_product_attention, 2 calls: give"
        ),
        ops_registry.use({torch.softmax: ten_times}),
    ):
        loss = F.scaled_dot_product_attention(q, q, q) + F.scaled_dot_product_attention(q, q, q)
    assert loss.requires_grad


def test_an_op_that_ran_on_constants_alone_is_told_apart() -> None:
    with (
        pytest.raises(ops_registry.UnusedRuleError, match="tanh was called, but on nothing that requires grad"),
        ops_registry.use({torch.tanh: ten_times}),
        torch.no_grad(),
    ):
        leaf(1.0).tanh()


def test_a_block_around_the_backward_alone_is_told_where_it_belongs() -> None:
    y = leaf(1.0).tanh()
    with (
        pytest.raises(ops_registry.UnusedRuleError, match="the forward pass belongs there"),
        ops_registry.use({torch.tanh: ten_times}),
    ):
        y.backward()


def test_any_is_content_with_one_rule() -> None:
    with ops_registry.use(both) as replaced:
        leaf(1.0).tanh()
    assert replaced.unused() == ["exp"]


def test_all_wants_each_rule_applied() -> None:
    with pytest.raises(ops_registry.UnusedRuleError, match="rule for exp"), ops_registry.use(both, expect="all"):
        leaf(1.0).tanh()


def test_one_rule_for_several_ops_has_to_be_applied_to_each() -> None:
    with (
        pytest.raises(ops_registry.UnusedRuleError, match="rule for exp"),
        ops_registry.use({(torch.tanh, torch.exp): ten_times}, expect="all"),
    ):
        leaf(1.0).tanh()


def test_none_wants_nothing() -> None:
    with ops_registry.use(both, expect=None) as replaced:
        pass
    assert replaced.unused() == ["tanh", "exp"]


def test_another_word_for_expect_is_refused() -> None:
    with pytest.raises(ops_registry.RuleError, match="'any', 'all' or None"):
        ops_registry.use(both, expect="some")  # type: ignore[arg-type]


def test_an_error_of_the_users_is_not_replaced_by_ours() -> None:
    with pytest.raises(KeyError), ops_registry.use(both):
        raise KeyError


def test_each_block_of_a_use_that_is_entered_often_wants_its_own_application() -> None:
    replaced = ops_registry.use({torch.tanh: ten_times})
    with replaced:
        leaf(1.0).tanh()
    with pytest.raises(ops_registry.UnusedRuleError), replaced:
        leaf(1.0).exp()
    assert replaced.unused() == []


def test_a_rule_for_one_input_is_unused_where_the_others_alone_want_a_gradient() -> None:
    with (
        pytest.raises(ops_registry.UnusedRuleError, match="rule for mul"),
        ops_registry.use({torch.mul: {"other": ten_times}}),
    ):
        leaf(1.0) * torch.ones(1)


def test_a_rule_that_a_block_inside_calls_by_default_is_applied() -> None:
    with ops_registry.use({torch.tanh: ten_times}), ops_registry.use({torch.tanh: lambda grad, default: default(grad)}):
        leaf(1.0).tanh()


def test_a_rule_of_which_a_block_inside_took_every_call_is_told_so() -> None:
    with (
        pytest.raises(ops_registry.UnusedRuleError, match="A block inside this one took every call of tanh"),
        ops_registry.use({torch.tanh: ten_times}),
        ops_registry.use({torch.tanh: lambda grad: grad}),
    ):
        leaf(1.0).tanh()


def test_ops_that_hide_and_those_they_hide_in_are_filed_under_these_names() -> None:
    named = {*HIDDEN_IN, *(op for ops in HIDDEN_IN.values() for op in ops)}
    assert not named - {name.partition(".")[0] for name in RULES}


def test_an_op_that_was_not_called_may_have_been_composed_by_the_model() -> None:
    with (
        pytest.raises(
            ops_registry.UnusedRuleError, match=r"gelu was not called\..*composed of other ops, and tanh was called"
        ),
        ops_registry.use({F.gelu: ten_times}),
    ):
        x = leaf(1.0)
        0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x.pow(3))))


def test_arithmetic_alone_is_no_sign_of_a_composed_op() -> None:
    with (
        pytest.raises(ops_registry.UnusedRuleError, match=r"gelu was not called\. These ops"),
        ops_registry.use({F.gelu: ten_times}),
    ):
        leaf(1.0) * leaf(2.0)


def test_calls_on_torchs_own_tensors_alone_are_no_calls() -> None:
    with (
        pytest.raises(ops_registry.UnusedRuleError, match=r"on a tracked tensor at all.*nn\.track.*tracer\.tensor"),
        ops_registry.use({torch.tanh: ten_times}),
    ):
        torch.ones(1, requires_grad=True).tanh()
