"""Custom Functions of all sorts, right and wrong, for the table of what passes and what raises."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

import tracer


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Cube(torch.autograd.Function):
    """With ``setup_context`` and a default argument."""

    @staticmethod
    def forward(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return scale * x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.scale = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * ctx.scale * x**2, None


class SavesResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return grad * y


class KeepsResultAsAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.y


class KeepsInputAsAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.x.cos()


class ReturnsIntermediate(torch.autograd.Function):
    """The documented way to a second derivative: what is saved is an output."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        e = x.exp()
        ctx.save_for_backward(e)
        return e.sin(), e

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, grad_e: torch.Tensor) -> Any:
        (e,) = ctx.saved_tensors
        return (grad * e.cos() + grad_e) * e


class SinAndCos(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, by_sin: torch.Tensor, by_cos: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return by_sin * x.cos() - by_cos * x.sin()


class Unmaterialised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        parts = [g * k for g, k in ((first, 2), (second, 3)) if g is not None]
        return sum(parts[1:], parts[0] + (10 if second is None else 0))


class MaskAndIndex(torch.autograd.Function):
    """Sorted values, and the permutation in floating point, which is no function to differentiate."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        values, index = x.sort()
        places = index.to(x.dtype)
        ctx.mark_non_differentiable(places, index)
        ctx.save_for_backward(index)
        return values, places, index, "no tensor"

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *others: Any) -> Any:
        (index,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(0, index, grad)


class Double(tracer.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class DoubleInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * grad


class SavesWhatItWrote(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return grad * y


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 5 * grad


class OneElement(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x[:1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.cat([grad * 7, grad.new_zeros(1)])


class NeedsInputGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, z: Any) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        assert ctx.needs_input_grad == (True, False, False)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        _, y = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False, False)
        return grad * y, None, None


class Vjp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    @staticmethod
    def vjp(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return 3 * grad


class BackwardAndVjp(Vjp):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 3 * grad


class BroadcastGradient(torch.autograd.Function):
    """Adds two tensors that broadcast, and hands on a gradient of the result's shape for both: torch sums it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, grad


class TooManyNones(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * grad, None, None


class NoGradientGiven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class RandomMask(torch.autograd.Function):
    """What it saves is no function of the input: a constant to every derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        mask = (torch.rand_like(x) < 2).to(x.dtype)
        ctx.save_for_backward(mask, x)
        return mask * x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        mask, x = ctx.saved_tensors
        return 2 * mask * x * grad


# ---------------------------------------------------------------- wrong ones


class HiddenIntermediate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        e = x.exp()
        ctx.save_for_backward(e)
        return e.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (e,) = ctx.saved_tensors
        return grad * e.cos() * e


class HiddenAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.e = x.exp()
        return ctx.e.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.e.cos() * ctx.e


class HiddenInBuffer(torch.autograd.Function):
    """The intermediate is written into a fresh tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        e = torch.empty(x.shape, dtype=x.dtype)
        e.copy_(x)
        e.exp_()
        ctx.save_for_backward(e)
        return e.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (e,) = ctx.saved_tensors
        return grad * e.cos() * e


class NoGradInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            slope = x.exp()
        return grad * slope


class AllNoGradInBackward(NoGradInBackward):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return grad * x.exp()


class TooFewGradients(BroadcastGradient):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad


class TooManyGradients(TooManyNones):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * grad, grad


class WrongShape(TooManyNones):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.new_ones(7)


class GradientForNumber(Cube):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, grad


class NotATensor(TooManyNones):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return "gradient"


class SavesNumber(TooManyNones):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(3.0)
        return x * 2


class ChangesInput(TooManyNones):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.clone()


class DirtyNotReturned(TooManyNones):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x.clone()


class ChangesGradient(tracer.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.mul_(2)


class ChangesGradientTorchs(TooManyNones):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.mul_(2)
