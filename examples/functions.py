"""Seven custom Functions, from the plainest to one that saves memory. Each works on tracked and on plain tensors.

Run it to see what each does to a gradient: ``python examples/functions.py``.
"""

from __future__ import annotations

from typing import Any

import torch

import tracer


class Swish(tracer.Function):
    """``x * sigmoid(beta * x)`` with a learnable number ``beta``. Saves its inputs, and computes the sigmoid again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        slope = s * (1 - s)
        return grad * (s + beta * x * slope), (grad * x * x * slope).sum()


class LogSumExp(tracer.Function):
    """``log(sum(exp(x)))`` over the last dimension.

    Its gradient is the softmax, which the result gives without a second reduction.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        top = x.amax(-1, keepdim=True)
        result = (x - top).exp().sum(-1, keepdim=True).log() + top
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        x, result = ctx.saved_tensors
        return grad * (x - result).exp()


class LinearReLU(tracer.Function):
    """``relu(x @ weight.T + bias)`` in one step.

    Saves, beside its inputs, only where the outputs were positive: one byte each.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = torch.addmm(bias, x, weight.T)
        positive = out > 0
        ctx.save_for_backward(x, weight, positive)
        return out.mul_(positive)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, positive = ctx.saved_tensors
        grad = grad * positive
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            grad @ weight if wants_x else None,
            grad.T @ x if wants_weight else None,
            grad.sum(0) if wants_bias else None,
        )


class StraightThroughSign(tracer.Function):
    """``sign(x)`` forward; backward as if it were ``x`` between -1 and 1, and constant outside."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.abs() <= 1)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (inside,) = ctx.saved_tensors
        return grad * inside


class ReverseGradient(tracer.Function):
    """The identity forward, ``-strength`` times the gradient backward (domain-adversarial training)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float = 1.0) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.strength * grad, None


class ScaleGradient(tracer.Function):
    """The identity forward, ``scale`` times the gradient backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.scale * grad, None


class StopGradient(tracer.Function):
    """The identity forward, no gradient backward: ``detach`` as a step of the graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None


def main() -> None:
    x = tracer.tensor([-2.0, -0.5, 0.5, 2.0], requires_grad=True)
    beta = tracer.tensor(1.0, requires_grad=True)
    calls = {
        "Swish": lambda: Swish.apply(x, beta),
        "LogSumExp": lambda: LogSumExp.apply(x),
        "LinearReLU": lambda: LinearReLU.apply(x.reshape(1, 4), torch.eye(4), torch.zeros(4)),
        "StraightThroughSign": lambda: StraightThroughSign.apply(x),
        "ReverseGradient": lambda: ReverseGradient.apply(x),
        "ScaleGradient": lambda: ScaleGradient.apply(x, 0.1),
        "StopGradient": lambda: StopGradient.apply(x),
    }
    for name, call in calls.items():
        (gradient,) = torch.autograd.grad(call().sum(), x, allow_unused=True)
        print(f"{name:20} {'no gradient' if gradient is None else gradient.tolist()}")


if __name__ == "__main__":
    main()
