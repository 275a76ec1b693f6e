"""Where somebody looks at each call, a compiled step runs as it is written; inside of another one it is part of that graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import nn
import tracer

Step = Callable[..., Any]


class TimesOnRelu(TorchFunctionMode):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if getattr(func, "__name__", "") == "relu" else result


class TwiceOnRelu(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.relu.default else result


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))


def step_of(model: torch.nn.Module) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = F.relu(model(x)).square().sum()
        loss.backward()
        return loss

    return step


def assert_same(model: torch.nn.Module, twin: torch.nn.Module) -> None:
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


AROUND: dict[str, list[Callable[[], Any]]] = {
    "function modes": [lambda: TimesOnRelu(2), lambda: TimesOnRelu(3), lambda: TimesOnRelu(2)],
    "dispatch modes": [TwiceOnRelu, torch.enable_grad, TwiceOnRelu],
    "anomaly mode": [torch.autograd.detect_anomaly, torch.enable_grad],
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("whole", [True, False], ids=["step", "module"])
@pytest.mark.parametrize("name", AROUND)
def test_modes_around_a_call_see_each_of_its_calls(name: str, whole: bool) -> None:
    model, twin = mlp(), mlp()
    if whole:
        compiled = tracer.compile(step_of(model), backend="replay")
    else:
        compiled = step_of(tracer.compile(model, backend="replay"))
    for around in AROUND[name]:
        x = torch.randn(5, 4)
        for step in (compiled, step_of(twin)):
            with around():
                step(x)
        assert_same(model, twin)


def test_calls_are_counted_as_eagerly() -> None:
    compiled, eager, counts = tracer.compile(step_of(mlp()), backend="replay"), step_of(mlp()), []
    for step in (compiled, compiled, eager):
        with FlopCounterMode(display=False) as counter:
            step(torch.ones(5, 4))
        counts.append(counter.get_total_flops())
    assert len(set(counts)) == 1


def test_a_default_device_is_no_reason_to_run_eagerly() -> None:
    compiled = tracer.compile(lambda x: x * torch.ones(4), backend="replay")
    with torch.device("cpu"):
        for _ in range(2):
            compiled(torch.randn(5, 4))
    assert [row["calls"] for row in compiled.explain().rows] == [2]


def by_name(model: torch.nn.Module, compiled: Step) -> Step:
    """A step that calls another, which nobody told it of."""
    other = copy.deepcopy(model)
    inner = compiled(step_of(model))

    def outer(x: torch.Tensor) -> torch.Tensor:
        scale = inner(x).detach()
        loss = (other(x) * scale).square().mean()
        loss.backward()
        return loss

    return outer


def from_a_hook(model: torch.nn.Module, compiled: Step) -> Step:
    other = copy.deepcopy(model)
    inner, data = compiled(torch.enable_grad()(step_of(other))), torch.ones(5, 4)
    model[2].weight.register_hook(lambda grad: grad * inner(data).detach())
    return step_of(model)


def recursively(model: torch.nn.Module, compiled: Step) -> Step:
    def step(x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        return step_of(model)(x) if depth == 0 else itself(x * 2, depth - 1)

    itself = compiled(step)
    return lambda x: itself(x, 2)


@pytest.mark.parametrize(
    "nested", [by_name, from_a_hook, recursively, lambda model, compiled: compiled(step_of(model))]
)
@pytest.mark.parametrize("warm", [True, False])
def test_a_compiled_step_in_another_is_part_of_its_graph(nested: Callable[..., Step], warm: bool) -> None:
    def replayed(step: Step) -> Any:
        compiled = tracer.compile(step, backend="replay")
        if warm:
            compiled(torch.ones(2, 4))
        return compiled

    model, twin = mlp(), mlp()
    outer, eager = nested(model, replayed), nested(twin, lambda step: step)
    outer = tracer.compile(outer, backend="replay")
    model.zero_grad()
    for _ in range(3):
        x = torch.randn(5, 4)
        torch.testing.assert_close(outer(x).detach(), eager(x).detach())
        assert_same(model, twin)
    assert len(outer.explain().rows) == 1


@pytest.mark.parametrize("take", [tracer.func.grad, torch.func.grad], ids=["tracer.func", "torch.func"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_derivative_through_a_result_raises(take: Callable[..., Step], warm: bool) -> None:
    model = mlp()
    compiled, x = tracer.compile(lambda x: model(x).sum(), backend="replay"), torch.randn(5, 4)
    if warm:
        compiled(x)
    with pytest.raises(tracer.SecondDerivativeError, match="ended with the step"):
        take(compiled)(x)


def test_a_pruned_sweep_meets_the_end_of_a_history() -> None:
    model = mlp()
    result = tracer.compile(lambda x: model(x).sum(), backend="replay")(torch.randn(5, 4))
    with pytest.raises(tracer.SecondDerivativeError, match="ended with the step"):
        torch.autograd.grad(result, model[0].weight, allow_unused=True)
