"""``tracer.steps``: the backward pass, one call at a time."""

from __future__ import annotations

import pytest
import torch
from support.leaves import leaf

import ops_registry
import tracer


def test_each_step_shows_what_came_and_what_goes_on() -> None:
    x, y = leaf(2.0), leaf(3.0)
    first, second, *leaves = tracer.steps((x * y).exp())
    value = torch.tensor([6.0], dtype=torch.float64).exp()
    assert (first.op, second.op) == ("exp", "mul")
    torch.testing.assert_close(first.inputs["input"], value)
    torch.testing.assert_close(second.grad, value)
    torch.testing.assert_close(second.inputs, {"input": 3 * value, "other": 2 * value})
    assert [step.op for step in leaves] == ["leaf", "leaf"]
    assert {step.grad.item() for step in leaves} == {(3 * value).item(), (2 * value).item()}


def test_the_leaves_add_up_what_the_calls_pass_on() -> None:
    x = leaf(1.0, 2.0)
    last = list(tracer.steps((x * x).sum() + x.sum()))[-1]
    assert last.node is x._node and last.grad.tolist() == [3.0, 5.0]


def test_the_graph_is_retained_and_grad_stays_as_it_was() -> None:
    x = leaf(1.0)
    y = x.exp()
    x.grad = torch.ones(1, dtype=torch.float64)
    assert len(list(tracer.steps(y))) == len(list(tracer.steps(y))) == 2
    assert x.grad.item() == 1.0
    y.backward()


def test_inputs_are_projected() -> None:
    x, y = leaf(1.0), leaf(1.0, 2.0, 3.0)
    step = next(s for s in tracer.steps((x * y).sum()) if s.op == "mul")
    assert step.inputs["input"].tolist() == [6.0] and step.inputs["other"].tolist() == [1.0, 1.0, 1.0]


def test_a_call_with_several_results_is_shown_a_tuple() -> None:
    first, _ = leaf(3.0, 1.0).unbind()
    step = next(s for s in tracer.steps(first * 5) if s.op == "unbind")
    assert step.grad == (torch.tensor(5.0).double(), None) and step.inputs["input"].tolist() == [5.0, 0.0]


def test_an_input_that_is_a_list_has_a_list_of_gradients() -> None:
    x, y = leaf(1.0), leaf(2.0)
    step = next(s for s in tracer.steps(torch.cat([x, y]), torch.tensor([3.0, 4.0]).double()) if s.op == "cat")
    assert [g.item() for g in step.inputs["tensors"]] == [3.0, 4.0]


def test_a_gradient_of_zero_is_none_at_each_call_that_it_passes() -> None:
    x = leaf(1.5)
    shown = {step.op: (step.grad, step.inputs) for step in tracer.steps(x.exp().floor().sin())}
    assert shown["floor"][1] == {"input": None}
    assert shown["exp"] == (None, {"input": None})
    assert shown["leaf"][0].tolist() == [0.0]


def test_hooks_run_and_what_they_return_is_shown() -> None:
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    step = next(s for s in tracer.steps(y.exp()) if s.op == "mul")
    torch.testing.assert_close(step.grad, 10 * y.detach().exp())


def test_a_replaced_rule_is_the_one_that_runs() -> None:
    x = leaf(1.0)
    with ops_registry.use({torch.exp: lambda grad: grad * 7}):
        y = x.exp()
    assert next(tracer.steps(y)).inputs["input"].tolist() == [7.0]


def test_a_function_of_the_users_is_a_step() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    step = next(tracer.steps(Double.apply(leaf(1.0)), torch.ones(1).double()))
    assert step.inputs == {"0": torch.tensor([2.0]).double()}


def test_it_may_be_left_half_way() -> None:
    x = leaf(1.0)
    y = x.exp().sin()
    walk = tracer.steps(y)
    next(walk)
    (inside,) = torch.autograd.grad(x.cos(), x)
    assert torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
    assert next(walk).op == "exp"
    del walk
    y.backward()
    assert inside.item() == pytest.approx(-0.8414709848)


def test_a_step_names_its_site_where_a_graph_knows_it() -> None:
    with tracer.Graph(sites=True):
        y = torch.nn.Sequential(torch.nn.Tanh())(leaf(1.0))
    step = next(tracer.steps(y))
    assert step.site is not None and step.site.module == "0" and "test_steps.py:" in repr(step)


def test_an_error_of_a_rule_is_raised_at_its_step() -> None:
    def failing(grad):
        raise ValueError("not here")

    with ops_registry.use({torch.exp: failing}):
        y = leaf(1.0).exp().sin()
    walk = tracer.steps(y)
    assert next(walk).op == "sin"
    with pytest.raises(ValueError, match="not here"):
        next(walk)
    assert torch.is_grad_enabled()


def test_a_tensor_without_a_history_is_refused() -> None:
    with pytest.raises(tracer.NoHistoryError):
        list(tracer.steps(tracer.tensor([1.0])))
