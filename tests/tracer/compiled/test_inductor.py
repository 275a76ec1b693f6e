"""Steps that torch's compiler compiles do what they do eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.functions import Cube
from torch.utils.checkpoint import checkpoint

import nn
import tracer

pytestmark = pytest.mark.inductor


def test_a_tracked_argument_may_enter_a_kernel_of_torchs() -> None:
    def step(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = torch.addmm(bias, a, b)
        result.sum().backward()
        return result

    def inputs() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [tracer.tensor(torch.randn(shape), requires_grad=True) for shape in ((2, 3), (2, 2), (2, 3))]

    compiled = tracer.compile(step, backend="inductor")
    for _ in range(2):
        ours, theirs = inputs(), inputs()
        torch.testing.assert_close(compiled(*ours).detach(), step(*theirs).detach())
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def gradient_penalty(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    score = model(x).sum()
    (grad,) = torch.autograd.grad(score, x, create_graph=True)
    return score + (grad.norm(2, 1) - 1).square().mean()


def hessian_product(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    weight = model[0].weight
    (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
    return (grad * torch.ones_like(grad)).sum() + loss


def backward_twice(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward(create_graph=True)
    penalty = sum(parameter.grad.square().sum() for parameter in model.parameters())
    return penalty + loss * 0


def hook_on_a_value(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = model[1](model[0](x))
    h.register_hook(lambda grad: grad.clamp(-0.1, 0.1) * 2)
    return model[2](h).square().sum()


def checkpointed(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model[2](checkpoint(lambda x: model[1](model[0](x)), x, use_reentrant=False)).square().sum()


def checkpointed_reentrant(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model[2](checkpoint(lambda x: model[1](model[0](x)), x.requires_grad_(), use_reentrant=True)).square().sum()


def a_function(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return Cube.apply(model(x)).square().sum()


STEPS: dict[str, Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]] = {
    function.__name__.replace("_", " "): function
    for function in (
        gradient_penalty, hessian_product, backward_twice, hook_on_a_value, checkpointed, checkpointed_reentrant, a_function,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_steps_within_steps_are_as_eager(name: str) -> None:
    def step_of(model: torch.nn.Module) -> Callable[[torch.Tensor], Any]:
        def step(x: torch.Tensor) -> torch.Tensor:
            loss = STEPS[name](model, x)
            model.zero_grad()
            loss.backward()
            return loss

        return step

    torch.manual_seed(0)
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)))
    twin = copy.deepcopy(model)
    compiled = tracer.compile(step_of(model), backend="inductor")
    eager = step_of(twin)
    for x in torch.randn(2, 5, 4):
        torch.testing.assert_close(compiled(x.clone()).detach(), eager(x.clone()).detach())
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
