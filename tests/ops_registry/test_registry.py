"""Registering, looking up and listing rules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.custom import mystery, ten_times
from support.leaves import leaf

import ops_registry
import tracer

SPELLINGS_OF_MUL = {
    "operator": lambda x, y: x * y,
    "reflected": lambda x, y: y.as_subclass(torch.Tensor) * x,
    "multiply": torch.multiply,
    "method": torch.Tensor.mul,
    "packet": torch.ops.aten.mul,
    "overload": torch.ops.aten.mul.Tensor,
    "keyword": lambda x, y: torch.mul(input=x, other=y),
    "numpy keyword": lambda x, y: torch.mul(x1=x, x2=y),
}


@pytest.mark.parametrize("call", SPELLINGS_OF_MUL.values(), ids=SPELLINGS_OF_MUL)
def test_one_rule_covers_every_spelling(call) -> None:
    x, y = leaf(1.0, 2.0), torch.tensor([3.0, 4.0], dtype=torch.float64)
    call(x, y).sum().backward()
    assert x.grad.tolist() == [3.0, 4.0]


def test_lookup_finds_the_rule_of_any_spelling() -> None:
    rule = ops_registry.lookup(torch.tanh)
    assert rule is not None and rule.name == "tanh"
    for spelling in (torch.Tensor.tanh, torch.Tensor.tanh_, torch.ops.aten.tanh.default, F.tanh):
        assert ops_registry.lookup(spelling) is rule


def test_lookup_of_a_function_without_a_rule_is_none() -> None:
    assert ops_registry.lookup(torch.Tensor.numpy) is None


def test_rules_says_what_is_covered_what_is_kept_and_where_it_is_written() -> None:
    listed = {info.op: info for info in ops_registry.list_rules()}
    assert listed["mul"].inputs == ("input", "other") and set(listed["mul"].keeps) == {"input", "other"}
    assert listed["tanh"].keeps == ("result",)
    assert "trigonometric.py:" in listed["tanh"].location
    assert listed["eq"].kind == "no gradient" and listed["eq"].inputs == ()


def test_rules_are_sorted_by_op() -> None:
    names = [info.op for info in ops_registry.list_rules()]
    assert names == sorted(names) and len(names) == len(set(names))


def test_a_second_rule_for_the_same_op_names_both_places() -> None:
    with pytest.raises(ops_registry.DuplicateRuleError, match=r"trigonometric\.py:\d+.*custom\.py:\d+.*replace=True"):
        ops_registry.backward(torch.tanh)(ten_times)


def test_a_duplicate_through_another_spelling_is_one_too() -> None:
    with pytest.raises(ops_registry.DuplicateRuleError):
        ops_registry.backward(torch.multiply, wrt="other")(ten_times)


def test_replace_puts_a_rule_in_the_place_of_another(clean_registry: None) -> None:
    ops_registry.backward(torch.tanh, replace=True)(ten_times)
    x = leaf(1.0)
    x.tanh().sum().backward()
    assert x.grad.tolist() == [10.0]


def test_in_place_spellings_may_have_a_formula_of_their_own(clean_registry: None) -> None:
    ops_registry.backward(torch.tanh, in_place=True)(ten_times)
    x, y = leaf(0.0), leaf(0.0)
    (x.tanh() + (y * 1).tanh_()).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([1.0], [10.0])


def test_replacing_a_rule_replaces_the_formula_of_in_place_spellings_too(clean_registry: None) -> None:
    ops_registry.backward(F.leaky_relu, replace=True)(ten_times)
    x = leaf(1.0)
    F.leaky_relu_(x * 1).sum().backward()
    assert x.grad.tolist() == [10.0]


def test_no_gradient_for_an_op_with_a_rule_is_an_error() -> None:
    with pytest.raises(ops_registry.DuplicateRuleError, match="tanh"):
        ops_registry.no_gradient(torch.tanh)


def test_a_rule_may_not_ask_for_what_the_op_does_not_have() -> None:
    def asks(grad, nonsense):
        return grad

    with pytest.raises(ops_registry.RuleError, match=r"'nonsense'.*tanh\(input\)"):
        ops_registry.backward(torch.tanh, replace=True)(asks)


def test_a_rule_without_grad_is_refused() -> None:
    with pytest.raises(ops_registry.RuleError, match="'grad'"):
        ops_registry.backward(torch.tanh, replace=True)(lambda result: result)


def test_a_rule_with_star_arguments_is_refused() -> None:
    with pytest.raises(ops_registry.RuleError, match="parameter names"):
        ops_registry.backward(torch.tanh, replace=True)(lambda grad, *rest: grad)


def test_an_input_that_the_op_does_not_have_cannot_be_covered() -> None:
    with pytest.raises(ops_registry.RuleError, match="no input 'weight'"):
        ops_registry.backward(torch.tanh, wrt="weight")(ten_times)


def test_something_that_torch_does_not_intercept_is_refused() -> None:
    with pytest.raises(ops_registry.RuleError):
        ops_registry.backward(len)(ten_times)


def test_a_refused_rule_leaves_the_registry_as_it_was() -> None:
    before = ops_registry.lookup(torch.tanh)
    with pytest.raises(ops_registry.RuleError):
        ops_registry.backward(torch.tanh, replace=True)(lambda grad, nonsense: grad)
    assert ops_registry.lookup(torch.tanh) is before


def test_only_what_the_wanted_gradients_need_is_saved() -> None:
    x, mask = leaf(1.0, 2.0), torch.ones(2, dtype=torch.float64)
    with tracer.Graph() as graph:
        y = x * mask
        (node,) = graph.nodes()
        assert node.plan.saved_names == ("other",)
        z = x * tracer.tensor(mask, requires_grad=True)
        assert graph.nodes()[1].plan.saved_names == ("other", "input")
    del y, z


def test_a_rule_for_an_op_of_ones_own_library_covers_it_alone(clean_registry: None) -> None:
    library = torch.library.Library("glassgrad_tests_own", "DEF")
    library.define("tanh(Tensor x) -> Tensor")
    library.impl("tanh", lambda x: x * 2, "CompositeExplicitAutograd")
    ops_registry.backward(torch.ops.glassgrad_tests_own.tanh)(ten_times)
    x = leaf(1.0)
    torch.ops.glassgrad_tests_own.tanh(x).sum().backward()
    assert x.grad.tolist() == [10.0]
    assert ops_registry.lookup(torch.tanh).formulas[0].function is not ten_times  # type: ignore[union-attr]


def test_forward_keeps_a_by_product(clean_registry: None) -> None:
    def doubling(x, scale):
        return x * scale, {"factor": scale}

    @ops_registry.backward(mystery, forward=doubling)
    def rule(grad, factor):
        return grad * factor

    x = leaf(1.0)
    mystery(x, 5.0).sum().backward()
    assert x.grad.tolist() == [5.0]


def test_a_tensor_that_would_lose_its_gradient_in_a_constant_argument_is_refused(clean_registry: None) -> None:
    library = torch.library.Library("glassgrad_tests_two", "DEF")
    library.define("scaled(Tensor x, Tensor by) -> Tensor")
    library.impl("scaled", lambda x, by: x * by, "CompositeImplicitAutograd")
    ops_registry.backward(torch.ops.glassgrad_tests_two.scaled)(lambda grad, by: grad * by)
    x = leaf(1.0)
    by = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    with pytest.raises(ops_registry.UnsupportedCallError, match="scaled"):
        torch.ops.glassgrad_tests_two.scaled(x, by)
    tracked_by = tracer.track(by)
    with pytest.raises(ops_registry.UnsupportedCallError, match="scaled"):
        torch.ops.glassgrad_tests_two.scaled(x, tracked_by)
