"""``tracer.check_rule`` on every pack: first and second derivatives against its own definition, written in torch's own autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracer
from ops_registry import RuleCheckError, packs, use


# ---------------------------------------------------------------------- definitions
class Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.ends = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        (x,), (low, high) = ctx.saved_tensors, ctx.ends
        return grad * (grad > 0) * ((x > low) & (x < high)), None, None


class Deconvnet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        return grad * (grad > 0), None, None


class Straight(torch.autograd.Function):
    """``step(x)``, passing the gradient where ``inside(x)`` says."""

    @staticmethod
    def forward(ctx, x, step, inside):
        ctx.save_for_backward(None if inside is None else inside(x))
        return step(x)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad if mask is None else grad * mask, None, None


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, values):
        ctx.save_for_backward(x)
        return torch.heaviside(x, values)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        summed = (grad * (x == 0)).sum()
        return grad * (1 + 2.5 * x.abs()) ** -2, summed


class Linear(torch.autograd.Function):
    """A linear layer, whose gradient by its input is changed."""

    @staticmethod
    def forward(ctx, x, weight, bias, change):
        ctx.save_for_backward(x, weight)
        ctx.change = change
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, weight.shape[0])
        return ctx.change(grad @ weight), rows.T @ x.reshape(-1, weight.shape[1]), rows.sum(0), None


def straight(step: Callable[..., torch.Tensor], inside: Any = None) -> Callable[..., torch.Tensor]:
    return lambda x: Straight.apply(x, step, inside)


def linear(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, weight, bias=None: Linear.apply(x, weight, bias, change)


def within_two(x: torch.Tensor) -> torch.Tensor:
    return x.abs() <= 2


def scaled_to(norm: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda g: torch.where(g.square().sum().sqrt() > norm, g / g.square().sum().sqrt() * norm, g)


def spread(*shape: int) -> torch.Tensor:
    """Numbers on both sides of every end."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4


#: The kinks of all ops below are among them.
WHOLE = torch.arange(-4.0, 8.0, dtype=torch.float64)
STEPS = {torch.sign, torch.floor, torch.ceil, torch.trunc}
INF = float("inf")
#: Pack, op, its definition, and further arguments of ``check_rule``.
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "guided relu": (packs.guided_backprop, torch.relu, lambda x: Guided.apply(x, 0, INF), {}),
    "guided relu6": (packs.guided_backprop, F.relu6, lambda x: Guided.apply(x, 0, 6), {}),
    "guided hardtanh": (
        packs.guided_backprop,
        F.hardtanh,
        lambda x, low, high: Guided.apply(x, low, high),
        {"inputs": (spread(5, 4), 0.5, 3.0)},
    ),
    "deconvnet relu": (packs.deconvnet, torch.relu, lambda x: Deconvnet.apply(x, 0, INF), {}),
    "deconvnet relu6": (packs.deconvnet, F.relu6, lambda x: Deconvnet.apply(x, 0, 6), {}),
    "straight round": (
        packs.straight_through,
        torch.round,
        lambda x, decimals=0: straight(lambda x: torch.round(x, decimals=decimals))(x),
        {},
    ),
    **{f"straight {step.__name__}": (packs.straight_through, step, straight(step), {}) for step in STEPS},
    "straight heaviside": (
        packs.straight_through,
        torch.heaviside,
        lambda x, values: (
            straight(lambda x: torch.heaviside(x, values.detach()))(x) + (x == 0) * (values - values.detach())
        ),
        {"inputs": (spread(5).round(), torch.zeros(5, dtype=torch.float64)), "memory": False},
    ),
    **{
        f"straight {step.__name__} in a range": (
            packs.straight_through(-2, 2),
            step,
            straight(step, within_two),
            {"memory": False},  # the definition saves the mask, the rule what it is made of
        )
        for step in STEPS
    },
    "surrogate": (
        packs.surrogate(2.5),
        torch.heaviside,
        Spike.apply,
        {"inputs": (spread(4, 3), torch.tensor(0.5, dtype=torch.float64))},
    ),
    "reverse": (packs.reverse(0.5, F.linear), F.linear, linear(lambda g: g / -2), {}),
    "clip": (packs.clip(0.25), F.linear, linear(lambda g: g.clamp(-0.25, 0.25)), {}),
    "clip_norm": (
        packs.clip_norm(0.75),
        F.linear,
        linear(scaled_to(0.75)),
        {"inputs": (spread(2, 3), spread(4, 3), spread(4))},
    ),
    **{
        f"pinned {name} {op.__name__}": (packs.pinned(name), op, definition, {"inputs": inputs, "memory": False})
        for name, op, definition, inputs in (
            ("right", torch.relu, lambda x: torch.where(x >= 0, x, 0), (WHOLE,)),
            ("left", F.relu6, lambda x: torch.where(x > 6, 6, torch.where(x > 0, x, 0)), (WHOLE,)),
            ("right", torch.abs, lambda x: torch.where(x >= 0, x, -x), (WHOLE,)),
            ("left", F.hardtanh, lambda x, a, b: torch.where(x > b, b, torch.where(x > a, x, a)), (WHOLE, -1.0, 2.0)),
            (
                "left",
                F.hardswish,
                lambda x: torch.where(x == 3, 1.5 * x - 1.5, torch.where(x == -3, 0 * x, F.hardswish(x))),
                (WHOLE,),
            ),
            ("right", F.leaky_relu, lambda x, a: torch.where(x >= 0, x, a * x), (WHOLE, 0.25)),
            ("left", F.elu, lambda x, a: torch.where(x == 0, a * x, F.elu(x, a)), (WHOLE, 0.5)),
            (
                "right",
                torch.clamp,
                lambda x, a, b: torch.where(x >= b, b, torch.where(x >= a, x, a)),
                (WHOLE, -1.0, 2.0),
            ),
            ("half", torch.maximum, torch.maximum, (WHOLE, WHOLE.flip(0))),
            ("right", torch.maximum, lambda x, y: torch.where(x >= y, x, y), (WHOLE, WHOLE.flip(0))),
            ("left", torch.minimum, lambda x, y: torch.where(x >= y, y, x), (WHOLE, WHOLE.flip(0))),
            ("right", F.l1_loss, lambda x, y, _: torch.where(x >= y, x - y, y - x), (WHOLE, WHOLE.flip(0), 0)),
        )
    },
}


@pytest.mark.parametrize(("pack", "op", "definition", "options"), CASES.values(), ids=CASES)
def test_a_pack_is_right_to_second_order_by_its_own_definition(pack, op, definition, options) -> None:
    options = {"dtypes": (torch.float64, torch.float32, torch.bfloat16), **options}
    with use(pack):
        report = tracer.check_rule(op, against=definition, max_examples=10, **options)
    assert report.orders[2] and report.against_torch and not report.against_differences


def test_a_pack_that_is_not_its_definition_is_found_wrong() -> None:
    with use(packs.reverse(0.4, F.linear)), pytest.raises(RuleCheckError) as caught:
        tracer.check_rule(F.linear, against=linear(lambda g: g * 0.4), max_examples=5)
    assert caught.value.kind == "sign"
