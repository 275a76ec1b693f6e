"""``tracer.timings``: where the time of a step goes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.functions import Double

import nn
import ops_registry
import tracer
from ops_registry.registry import active
from tracer.errors import FreedGraphError, GradientArgumentError, NotNotedError, ReportError
from tracer.reports.timings import BETWEEN, StepTimes, TimingRow

#: Milliseconds that the slow ops take each, far more than the machine's noise on a small call.
SLOW = 40.0


def leaf(*shape: int) -> torch.Tensor:
    return tracer.tensor(torch.randn(*shape), requires_grad=True)


def rest() -> None:
    time.sleep(SLOW / 1e3)


def slow_forward(input: torch.Tensor) -> Any:
    rest()
    return torch.erf(input), {"sign": input.sign()}


def slow_backward(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    rest()
    return grad * result


@pytest.fixture
def slow(clean_registry: None) -> None:
    """``erf`` rests in forward, ``exp`` in backward."""

    @ops_registry.backward(torch.erf, forward=slow_forward, replace=True)
    def erf(grad: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
        return grad * sign

    ops_registry.backward(torch.exp, replace=True)(slow_backward)


def rows(report: Any) -> dict[str, TimingRow]:
    return {row.what: row for row in report}


def near(ms: float | None, times: int) -> bool:
    return ms is not None and times * SLOW <= ms < (times + 0.9) * SLOW


def test_the_time_of_a_call_is_that_of_its_op(slow: None) -> None:
    x = leaf(3)
    report = tracer.timings(lambda: (x.erf().exp() + x.exp()).sum(), passes=3)
    found = rows(report)
    assert near(found["erf"].forward_ms, 1) and not near(found["erf"].backward_ms, 1)
    assert near(found["exp"].backward_ms, 2) and not near(found["exp"].forward_ms, 1)
    assert (found["exp"].calls, found["erf"].calls, found["add"].calls) == (2, 1, 1)
    assert report.rows[0].what == "exp" and "most for exp" in report.verdict
    assert sum(row.share for row in report) == pytest.approx(1)


def test_of_a_tensor_the_backward_pass_alone_is_timed(slow: None) -> None:
    x = leaf(3)
    loss = x.exp().sum()
    report = tracer.timings(loss, passes=1)
    assert near(rows(report)["exp"].backward_ms, 1)
    assert all(row.forward_ms is None for row in report) and "forward" not in str(report.verdict)
    assert "give timings() a function" in report.advice[-1]
    assert x.grad is None
    loss.backward()  # what was saved is still there
    assert x.grad is not None


def test_the_columns_add_up_to_the_passes(slow: None) -> None:
    x = leaf(3)

    def step() -> torch.Tensor:
        rest()
        return x.erf().exp().sum()

    found = rows(tracer.timings(step, passes=1))
    assert near(found[BETWEEN].forward_ms, 1)
    assert near(sum(row.forward_ms or 0.0 for row in found.values()), 2)
    assert near(sum(row.backward_ms or 0.0 for row in found.values()), 1)
    assert list(found)[-1] == BETWEEN


def test_by_rule_tells_where_the_formula_is_written(slow: None) -> None:
    x = leaf(3)
    found = rows(tracer.timings(lambda: x.exp().sum(), by="rule", passes=1))
    written = f"exp: test_timings.py:{slow_backward.__code__.co_firstlineno}"
    assert near(found[written].backward_ms, 1)


def test_by_line(slow: None) -> None:
    x = leaf(3)

    def step() -> torch.Tensor:
        y = x.exp()
        return y.erf().sum()

    found = rows(tracer.timings(step, by="line", passes=1))
    first = step.__code__.co_firstlineno
    assert near(found[f"{__file__}:{first + 1}"].backward_ms, 1)
    assert near(found[f"{__file__}:{first + 2}"].forward_ms, 1)


class Exp(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


@pytest.mark.parametrize("of_a_tensor", [False, True])
def test_by_module(slow: None, of_a_tensor: bool) -> None:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), Exp()))
    x = torch.randn(2, 3)
    with tracer.Graph(sites=True):
        loss = net(x).sum()
    found = rows(tracer.timings(loss if of_a_tensor else lambda: net(x).sum(), by="module", passes=1))
    assert near(found["1"].backward_ms, 1) and found["0"].calls == 1


@pytest.mark.parametrize("by", ["line", "module"])
def test_lines_and_modules_of_a_tensor_need_sites(by: str) -> None:
    with pytest.raises(NotNotedError, match=r"tracer\.Graph\(sites=True\)"):
        tracer.timings(leaf(3).sin().sum(), by=by)


def test_calls_in_place_and_calls_without_a_gradient_are_timed_too() -> None:
    x = leaf(3)
    found = rows(tracer.timings(lambda: (x * 1).relu_().mul(x.argmax()).sum(), passes=1))
    assert found["relu"].forward_ms is not None and found["relu"].backward_ms is not None
    assert found["argmax"].forward_ms is not None and found["argmax"].backward_ms is None


def test_what_is_inside_a_custom_function_is_not_timed_as_its_forward() -> None:
    x = leaf(3)
    found = rows(tracer.timings(lambda: Double.apply(x).sum(), passes=1))
    assert found["Double"].forward_ms is None and found["Double"].backward_ms is not None


def test_a_checkpoint_runs_again_for_the_call_that_asks_for_it(slow: None) -> None:
    x = leaf(3)
    found = rows(tracer.timings(lambda: tracer.checkpoint(lambda t: t.erf(), x).sum(), passes=1))
    assert near(found["erf"].forward_ms, 1) and near(found["erf"].backward_ms, 1)


def test_a_rule_replaced_around_it_is_timed(slow: None) -> None:
    x = leaf(3)
    with ops_registry.use({torch.sin: slow_backward}):
        found = rows(tracer.timings(lambda: x.sin().sum(), passes=1))
    assert near(found["sin"].backward_ms, 1)


def test_a_call_that_the_function_replaces_itself_is_timed_in_backward_alone(slow: None) -> None:
    x = leaf(3)

    def step() -> torch.Tensor:
        with ops_registry.use({torch.sin: slow_backward}):
            return (x * 1).sin_().erf().sum()

    found = rows(tracer.timings(step, passes=1))
    assert near(found["sin"].backward_ms, 1) and found["sin"].forward_ms is None
    assert near(found["erf"].forward_ms, 1)


def test_a_call_that_is_composed_of_others_is_timed_as_one_where_its_rule_is_replaced() -> None:
    x = leaf(2, 3)
    with ops_registry.use({F.normalize: lambda grad: grad}):
        found = rows(tracer.timings(lambda: F.normalize(x).sum(), passes=1))
    assert set(found) == {"normalize", "sum", BETWEEN}
    assert found["normalize"].calls == 1 and found["normalize"].forward_ms is not None


def test_gradients_are_those_of_an_unwatched_pass_afterwards() -> None:
    net, x = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU())), torch.randn(2, 3)
    table = active.table
    tracer.timings(lambda: net(x).sum(), by="module")
    assert active.table is table and all(p.grad is None for p in net.parameters())
    net(x).sum().backward()
    grad = net[0].weight.grad.clone()
    weight = net[0].weight.detach().clone().requires_grad_()
    F.gelu(F.linear(x, weight, net[0].bias.detach())).sum().backward()
    torch.testing.assert_close(grad, weight.grad)


def test_a_function_that_raises_leaves_the_rules_as_they_were() -> None:
    table, runs = active.table, []

    def step() -> torch.Tensor:
        runs.append(1)
        if len(runs) == 3:
            raise ValueError("third time")
        return leaf(3).sum()

    with pytest.raises(ValueError, match="third time"):
        tracer.timings(step)
    assert active.table is table


def test_it_says_what_the_watching_cost_and_runs_as_often_as_it_says() -> None:
    x, runs = leaf(3), []

    def step() -> torch.Tensor:
        runs.append(1)
        return x.sin().sum()

    report = tracer.timings(step, passes=3)
    assert len(runs) == 7 and "in backward and" in report.advice[0] and "in forward" in report.advice[0]
    assert "medians of 3 passes" in report.verdict


def test_hooks_are_counted_for_their_node() -> None:
    x = leaf(3)

    def step() -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda grad: rest())
        return y.sum()

    assert near(rows(tracer.timings(step, passes=1))["sin"].backward_ms, 1)


def test_a_call_is_waited_for_on_any_device(device: torch.device) -> None:
    size = 600 if device.type == "cpu" else 8000
    x = tracer.tensor(torch.randn(size, size, device=device), requires_grad=True)
    report = tracer.timings(lambda: (x @ x)[0, 0] * 2, passes=3)
    assert report.rows[0].what == "matmul" and report.rows[0].share > 0.5


def test_ten_thousand_calls_are_timed_without_recursion() -> None:
    y = x = leaf(2)
    with tracer.Graph(sites=True) as graph:
        for _ in range(5_000):
            y = y * 1.5 + x
    found = rows(tracer.timings(y.sum(), by="module", passes=1))
    assert found["(no submodule)"].calls == 10_000
    assert tracer.memory(graph, by="module").bytes == graph.kept_bytes()


@pytest.mark.parametrize(("accelerator", "waits"), [("meta", True), ("cuda", False), (None, False)])
def test_the_devices_of_the_calls_are_waited_for_and_no_other(
    monkeypatch: pytest.MonkeyPatch, accelerator: str | None, waits: bool
) -> None:
    waited: list[torch.device] = []
    there = None if accelerator is None else torch.device(accelerator)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: there)
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    x = tracer.tensor(torch.ones(3, device="meta"), requires_grad=True)
    tracer.timings(lambda: x.sin().sum(), passes=1)
    calls = 2  # sin, sum
    assert waited.count(torch.device("meta")) == len(waited)
    assert len(waited) >= 4 * calls if waits else not waited


def test_arguments_are_checked() -> None:
    loss = leaf(3).sin().sum()
    with pytest.raises(GradientArgumentError, match="'op', 'rule', 'line', 'module'"):
        tracer.timings(loss, by="layer")
    with pytest.raises(GradientArgumentError, match="one pass or more"):
        tracer.timings(loss, passes=0)
    with pytest.raises(ReportError, match="given None for the loss"):
        tracer.timings(lambda: None)
    loss.backward()
    with pytest.raises(FreedGraphError):
        tracer.timings(loss)


def test_a_report_can_be_written_as_json() -> None:
    x = leaf(3)
    told = json.loads(json.dumps(tracer.timings(lambda: x.sin().sum()).to_dict()))
    assert told["columns"] == ["what", "calls", "forward_ms", "backward_ms", "share"]


# ---------------------------------------------------------------------- steps of a loop
def test_steps_of_a_loop_are_timed_as_they_run() -> None:
    w = tracer.tensor([1.0, 2.0], requires_grad=True)
    with StepTimes("op") as steps:
        for step in range(8):
            loss = (w.sin() * 2).sum()
            if step == 0:
                loss = loss + w.cosh().sum()  # what runs in one step alone is not in the median
            steps.end_step(loss)
            loss.backward()
            with torch.no_grad():
                w.mul_(0.9)
            steps.begin_step()
    rows = {row.what: row for row in steps.report()}
    assert {"sin", "mul", "sum", BETWEEN} == set(rows)
    assert rows["sin"].calls == 1 and rows["sin"].forward_ms and rows["sin"].backward_ms
    assert rows["mul"].calls == 1  # the optimiser's is not counted
    assert "medians of 5 passes" in steps.report().verdict


def test_the_loops_own_backward_pass_is_in_no_step() -> None:
    w = tracer.tensor([1.0], requires_grad=True)
    with StepTimes("op") as steps:
        for _ in range(3):
            steps.end_step((w * w).sum())
            time.sleep(0.05)  # its backward pass
            steps.begin_step()
    assert sum(row.forward_ms or 0 for row in steps.report()) < 40
