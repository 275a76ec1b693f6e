"""Errors of the backward pass name the user's line and the module where a graph with sites was open, and say else how to know them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.custom import mystery, of_torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

import nn
import tracer
from ops_registry import use
from ops_registry.errors import RuleResultError

T = torch.Tensor


class Base(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: T) -> T:
        ctx.save_for_backward(a)
        return a * 2


class TwoGradients(Base):
    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad, grad


class NoTensor(Base):
    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return 2.0


class WritesInPlace(Base):
    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad.mul_(2)


class Failing(Base):
    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        raise ValueError("mine")


class Once(Base):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: T) -> Any:
        return grad * ctx.saved_tensors[0]


class Unrecorded(Base):
    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad * ctx.saved_tensors[0].detach()


def written_gradient(x: T) -> T:
    y = WritesInPlace.apply(x)  # HERE
    return (y + x) * 2


def overwritten(x: T) -> T:
    y = x.exp()  # HERE
    y.add_(1)
    return y


def hooked(hook: Callable[..., Any], on_node: str | None = None) -> Callable[[T], T]:
    def program(x: T) -> T:
        y = x.sin()  # HERE
        if on_node is None:
            y.register_hook(hook)
        else:
            getattr(y.grad_fn, on_node)(hook)
        return y * 1

    return program


def under_rule(rule: Callable[..., Any], op: Callable[[T], T] = torch.tanh) -> Callable[[T], T]:
    def program(x: T) -> T:
        with use({op: rule}):
            return op(x)  # HERE

    return program


def raising_rule(grad: T) -> T:
    raise ValueError("mine")


def badly_packed(x: T) -> T:
    with saved_tensors_hooks(lambda tensor: tensor, lambda packed: "nothing"):
        return x.exp()  # HERE


def without_rule(x: T) -> T:
    return mystery(x)  # HERE


def by_fallback(x: T) -> T:
    with tracer.fallback("torch"):
        return of_torch(x, 3.0)  # HERE


def reentrant(x: T) -> T:
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True)  # HERE


def applied(function: Any) -> Callable[[T], T]:
    def program(x: T) -> T:
        return function.apply(x)  # HERE

    return program


def root(x: T) -> T:
    return (x - x).sqrt() * 0  # HERE


def backward(y: T, x: T) -> None:
    y.sum().backward()


def twice(y: T, x: T) -> None:
    loss = y.sum()
    loss.backward()
    x.grad = None
    loss.backward()


def second(y: T, x: T) -> None:
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    grad.sum().backward()


def in_anomaly_mode(y: T, x: T) -> None:
    with torch.autograd.detect_anomaly():
        y.sum().backward()


def grad(y: T, x: T) -> None:
    torch.autograd.grad(y.sum() + 0 * x.sum(), x)


CASES: dict[str, tuple[type[Exception], Callable[[T], T], Callable[[T, T], None]]] = {
    "missing rule": (tracer.MissingRuleError, without_rule, backward),
    "overwritten": (tracer.OverwrittenError, overwritten, backward),
    "second pass": (tracer.FreedGraphError, lambda x: x.exp() * 1, twice),  # HERE
    "second pass of a Function": (tracer.FreedGraphError, applied(Once), twice),
    "rule of a wrong shape": (RuleResultError, under_rule(lambda grad: grad.new_ones(7, 5)), backward),
    "rule that gives no tensor": (RuleResultError, under_rule(lambda grad: 1.0), backward),
    "rule that fails": (ValueError, under_rule(raising_rule), backward),
    "hook of a wrong shape": (RuleResultError, hooked(lambda grad: grad.new_ones(7)), backward),
    "hook that gives no tensor": (RuleResultError, hooked(lambda grad: 1.0), backward),
    "hook on a node": (RuleResultError, hooked(lambda into, came: (), "register_hook"), backward),
    "hook before a node": (RuleResultError, hooked(lambda came: (came[0], 1), "register_prehook"), backward),
    "unpack hook": (tracer.SavedTensorHookError, badly_packed, backward),
    "Function with two gradients": (tracer.FunctionError, applied(TwoGradients), backward),
    "Function that gives no tensor": (tracer.FunctionError, applied(NoTensor), backward),
    "Function that writes into its gradient": (tracer.InPlaceError, written_gradient, backward),
    "Function that fails": (ValueError, applied(Failing), backward),
    "Function, differentiated twice": (tracer.SecondDerivativeError, applied(Once), second),
    "Function with an unrecorded part": (tracer.SecondDerivativeError, applied(Unrecorded), second),
    "fallback, differentiated twice": (tracer.SecondDerivativeError, by_fallback, second),
    "anomaly mode": (tracer.AnomalyError, root, in_anomaly_mode),
    "reentrant checkpoint under grad": (RuntimeError, reentrant, grad),
}


class Body(torch.nn.Module):
    def __init__(self, program: Callable[[T], T]) -> None:
        super().__init__()
        self.program = program
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: T) -> T:
        return self.program(x * self.weight)


def told(name: str, **options: bool) -> str:
    kind, program, run = CASES[name]
    x = tracer.tensor([0.5, 1.5], requires_grad=True)
    model = nn.track(torch.nn.Sequential(torch.nn.Identity(), Body(program)))
    with tracer.Graph(**options):
        y = model(x)
        with pytest.raises(kind) as caught:
            run(y, x)
    assert x.grad is None
    return "\n".join((str(caught.value), *getattr(caught.value, "__notes__", ())))


def line_of(name: str) -> int:
    lines, first = inspect.getsourcelines(CASES[name][1])
    return first + next(i for i, text in enumerate(lines) if text.endswith("# HERE\n"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_with_sites_it_names_the_users_line_and_the_module(name: str) -> None:
    assert f"test_errors_name_the_place.py:{line_of(name)} in 1" in told(name, sites=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_without_sites_it_says_how_to_know_them(name: str) -> None:
    text = told(name)
    assert text.count("tracer.Graph(sites=True) would tell where it was called") == 1, text
