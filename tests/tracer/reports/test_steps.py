"""``tracer.steps``: the backward pass one call at a time, by the engine's own sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.functions import Double

import tracer
from tracer.backprop.progress import current_graph_task_id


def leaf(*shape: int) -> torch.Tensor:
    return tracer.tensor(torch.randn(*shape, dtype=torch.float64), requires_grad=True)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[0].mul_(3)
    y.tanh_()
    return y.sum()


def several(x: torch.Tensor) -> torch.Tensor:
    values, _ = x.max(dim=0)
    a, b = x.chunk(2)
    return (values * a * b).sum() + torch.cat([a, x]).sum()


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in place": in_place,
    "several results": several,
    "a Function": lambda x: (Double.apply(x) * x).sum(),
    "a checkpoint": lambda x: tracer.checkpoint(lambda t: t.tanh().exp(), x).sum(),
    "vmap": lambda x: torch.vmap(lambda row: (row * x[0]).tanh())(x).sum(),
    "a view": lambda x: (x.t() @ x)[0].sum(),
    "a zero gradient": lambda x: (x * torch.sign(x)).sum() + x.round().sum(),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_last_steps_are_the_gradients_of_the_leaves(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = leaf(2, 3)
    loss = program(x)
    (right,) = torch.autograd.grad(loss, x, retain_graph=True)
    *calls, last = tracer.steps(loss)
    assert last.tensor is x and torch.equal(last.grad, right)
    assert calls and x.grad is None
    (again,) = torch.autograd.grad(loss, x)  # the graph was retained
    assert torch.equal(again, right)


def test_a_step_has_the_gradient_that_came_and_those_that_go_on_by_name() -> None:
    x, w, b = leaf(2, 3), leaf(4, 3), leaf(4)
    loss = F.linear(x, w, b).sum()
    one = next(step for step in tracer.steps(loss) if step.op == "linear")
    g = torch.ones(2, 4, dtype=torch.float64)
    assert torch.equal(one.grad, g)
    assert torch.equal(one.inputs.input, g @ w.detach())
    assert torch.equal(one.inputs.weight, g.T @ x.detach())
    assert torch.equal(one.inputs[2], g.sum(0)) and one.inputs[2].shape == b.shape  # after projection
    assert "linear" in str(one) and "weight" in str(one)


def test_inputs_that_want_no_gradient_are_left_out() -> None:
    w = leaf(4, 3)
    step = next(s for s in tracer.steps(F.linear(torch.ones(2, 3, dtype=torch.float64), w).sum()) if s.op == "linear")
    assert step.inputs._fields == ("weight",)


def test_a_gradient_of_zero_is_none_and_its_calls_have_steps_too() -> None:
    x = leaf(3)
    found = {step.op: step for step in tracer.steps((x * 2).tanh().round().sum())}
    assert found["round"].inputs == (None,) and found["tanh"].grad is None and found["mul"].inputs == (None,)
    assert torch.equal(found["leaf"].grad, torch.zeros(3, dtype=torch.float64))


def test_several_results_give_a_tuple_with_none() -> None:
    x = leaf(4)
    (step,) = [s for s in tracer.steps(x.chunk(2)[1].sum()) if isinstance(s.grad, tuple)]
    assert step.grad[0] is None and torch.equal(step.grad[1], torch.ones(2, dtype=torch.float64))


def test_between_steps_no_sweep_is_in_progress() -> None:
    x = leaf(3)
    loss = x.tanh().exp().sum()
    for _ in tracer.steps(loss):
        assert current_graph_task_id() == -1 and torch.is_grad_enabled()
        torch.autograd.grad((x * 2).sum(), x)


def test_a_pass_that_is_dropped_leaves_nothing_behind() -> None:
    x = leaf(3)
    loss = x.tanh().exp().sum()
    next(iter(tracer.steps(loss)))
    loss.backward()
    assert torch.allclose(x.grad, (x.detach().tanh().exp() * (1 - x.detach().tanh() ** 2)))


def test_hooks_on_tensors_run_and_those_on_filled_gradients_do_not() -> None:
    x = leaf(3)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    filled: list[Any] = []
    x.register_post_accumulate_grad_hook(filled.append)
    last = list(tracer.steps(y.sum()))[-1]
    assert torch.equal(last.grad, torch.full((3,), 20.0, dtype=torch.float64))
    assert filled == [] and y.grad is None


def test_callbacks_of_hooks_are_called_at_the_end() -> None:
    x, called = leaf(3), []
    y = x.tanh()
    y.register_hook(lambda g: torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append(1)))
    for _ in tracer.steps(y.exp().sum()):
        assert not called
    assert called == [1]


def test_several_outputs_are_weighted() -> None:
    x = leaf(3)
    last = list(tracer.steps([x * 2, x * 3], [torch.ones(3, dtype=torch.float64), 2.0]))[-1]
    assert torch.equal(last.grad, torch.full((3,), 8.0, dtype=torch.float64))


def test_sites_are_known_where_a_graph_noted_them() -> None:
    x = leaf(3)
    with tracer.Graph(sites=True):
        loss = x.tanh().sum()
    step = next(s for s in tracer.steps(loss) if s.op == "tanh")
    assert step.site is not None and "test_steps.py" in str(step)


def test_arguments_are_looked_at_at_once() -> None:
    with pytest.raises(tracer.GradientArgumentError):
        tracer.steps(leaf(3) * 2)
    with pytest.raises(tracer.NoHistoryError):
        tracer.steps(torch.ones(()))


def test_a_history_in_torch_ends_with_the_gradient_that_arrives_there() -> None:
    native = torch.ones(3, dtype=torch.float64, requires_grad=True)
    between = native * 2
    last = list(tracer.steps((leaf(3) * between).sum()))
    (step,) = [s for s in last if s.op == "torch"]
    assert step.grad.shape == (3,) and native.grad is None


def test_other_rules_can_be_stepped_through() -> None:
    x = leaf(4)
    with tracer.Graph(values=True):
        loss = x.relu().sum()
    *_, last = tracer.steps(loss, rules={torch.relu: lambda grad: grad * 5})
    assert torch.equal(last.grad, torch.full((4,), 5.0, dtype=torch.float64))
    *_, plain = tracer.steps(loss)
    assert torch.equal(plain.grad, (x.detach() > 0).double())


def test_a_long_graph_is_stepped_through() -> None:
    x = leaf(1)
    y = x
    for _ in range(20_000):
        y = y * 1.0
    assert sum(1 for _ in tracer.steps(y.sum())) == 20_002
