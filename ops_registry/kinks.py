"""Slopes from the left and from the right where an op has a kink, and rules that take one convention there.

A kink is a place where a continuous function has two one-sided slopes. Jumps (``hardshrink``, ``round``) have none, and where a reduction
picks one of several equal elements (``max`` along a dimension, ``max_pool``), there is no left or right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ops_registry.rules.activations import SELU_ALPHA, SELU_SCALE
from ops_registry.rules.losses import input_and_target
from ops_registry.shared.loss_reduction import spread_reduction

Choice = Callable[[Any, Any], Any]
Rules = dict[Callable[..., Any], Any]

#: What each convention makes of the slopes from the left and from the right.
CONVENTIONS: dict[str, Choice] = {
    "zero": lambda left, right: 0,
    "half": lambda left, right: (left + right) / 2,
    "left": lambda left, right: left,
    "right": lambda left, right: right,
}


def rules_at_kinks(choice: Choice) -> Rules:
    """For each op with a kink: its own rule, but at the kink what ``choice`` makes of the two slopes."""
    return {**_activations(choice), **_distances(choice), **_clamps(choice), **_larger_and_smaller(choice)}


def _times(grad: Any, slope: Any) -> Any:
    """A slope of 0 lets nothing through, an infinite gradient neither."""
    return grad * slope if isinstance(slope, torch.Tensor) or slope else 0


def _activations(choice: Choice) -> Rules:
    def pin(grad: Any, default: Any, input: Any, *kinks: tuple[Any, Any, Any]) -> Any:
        """``default(grad)``, and at each kink (place, slope from the left, slope from the right) the chosen slope."""
        found = default(grad)
        for at, left, right in kinks:
            found = torch.where(input == at, _times(grad, choice(left, right)), found)
        return found

    def relu(grad: Any, default: Any, input: Any) -> Any:
        return pin(grad, default, input, (0, 0, 1))

    def relu6(grad: Any, default: Any, input: Any) -> Any:
        return pin(grad, default, input, (0, 0, 1), (6, 1, 0))

    def threshold(grad: Any, default: Any, input: Any, threshold: Any, value: Any) -> Any:
        return pin(grad, default, input, (threshold, 0, 1)) if threshold == value else default(grad)

    def hardtanh(grad: Any, default: Any, input: Any, min_val: Any, max_val: Any) -> Any:
        return pin(grad, default, input, (min_val, 0, 1), (max_val, 1, 0)) if min_val < max_val else default(grad)

    def hardsigmoid(grad: Any, default: Any, input: Any) -> Any:
        return pin(grad, default, input, (-3, 0, 1 / 6), (3, 1 / 6, 0))

    def hardswish(grad: Any, default: Any, input: Any) -> Any:
        return pin(grad, default, input, (-3, 0, -1 / 2), (3, 3 / 2, 1))

    def softshrink(grad: Any, default: Any, input: Any, lambd: Any) -> Any:
        return pin(grad, default, input, (-lambd, 1, 0), (lambd, 0, 1)) if lambd else grad

    def leaky_relu(grad: Any, default: Any, input: Any, negative_slope: Any) -> Any:
        return pin(grad, default, input, (0, negative_slope, 1))

    def prelu(grad: Any, default: Any, input: Any, weight: Any) -> Any:
        channels = (-1,) + (1,) * (input.dim() - 2) if input.dim() > 1 else (1,) * input.dim()
        return pin(grad, default, input, (0, weight.reshape(channels), 1))

    def elu(grad: Any, default: Any, input: Any, alpha: Any, scale: Any, input_scale: Any) -> Any:
        return pin(grad, default, input, (0, scale * alpha * input_scale, scale))

    def selu(grad: Any, default: Any, input: Any) -> Any:
        return pin(grad, default, input, (0, SELU_SCALE * SELU_ALPHA, SELU_SCALE))

    return {
        torch.relu: relu,
        F.relu6: relu6,
        F.threshold: threshold,
        F.hardtanh: hardtanh,
        F.hardsigmoid: hardsigmoid,
        F.hardswish: hardswish,
        F.softshrink: softshrink,
        F.leaky_relu: leaky_relu,
        F.prelu: {"input": prelu},
        F.elu: elu,
        F.selu: selu,
    }


def _distances(choice: Choice) -> Rules:
    """|d|, with the slopes -1 and 1 at 0. Of complex numbers it has no left or right."""

    def absolute(grad: Any, default: Any, input: Any) -> Any:
        if input.is_complex():
            return default(grad)
        return torch.where(input == 0, _times(grad, choice(-1, 1)), default(grad))

    def l1_loss(grad: Any, input: Any, target: Any, reduction: Any, needs: Any) -> Any:
        difference = input - target
        slope = difference.sgn()
        if not difference.is_complex():
            slope = torch.where(difference == 0, choice(-1, 1), slope)
        return input_and_target(spread_reduction(grad, reduction, difference.shape) * slope, needs)

    return {torch.abs: absolute, F.l1_loss: l1_loss}


# Two arguments that are equal: the kink is that of their difference, the first less the second. Seen from the left the second is larger.


def _share(choice: Choice, left: int, right: int) -> Callable[..., Any]:
    """For one of two arguments: its own gradient, and the chosen part of it where they are equal."""

    def shared(grad: Any, default: Any, input: Any, other: Any) -> Any:
        return torch.where(input == other, _times(grad, choice(left, right)), default(grad))

    return shared


def _larger_and_smaller(choice: Choice) -> Rules:
    larger = {"input": _share(choice, 0, 1), "other": _share(choice, 1, 0)}
    smaller = {"input": _share(choice, 1, 0), "other": _share(choice, 0, 1)}
    return {torch.maximum: larger, torch.fmax: larger, torch.minimum: smaller, torch.fmin: smaller}


def _clamps(choice: Choice) -> Rules:
    """The larger of input and lower bound, then the smaller of that and the upper one; bounds that cross or meet keep their own rule."""
    left, right = choice(1, 0), choice(0, 1)

    def clamp_input(grad: Any, default: Any, input: Any, min: Any, max: Any) -> Any:
        found = default(grad)
        if min is not None:
            found = torch.where(_on(input, min, min, max), _times(grad, right), found)
        if max is not None:
            found = torch.where(_on(input, max, min, max), _times(grad, left), found)
        return found

    def clamp_lower(grad: Any, default: Any, input: Any, min: Any, max: Any) -> Any:
        return torch.where(_on(input, min, min, max), _times(grad, left), default(grad))

    def clamp_upper(grad: Any, default: Any, input: Any, min: Any, max: Any) -> Any:
        return torch.where(_on(input, max, min, max), _times(grad, right), default(grad))

    def clamp_min_input(grad: Any, default: Any, input: Any, min: Any) -> Any:
        return clamp_input(grad, default, input, min, None)

    def clamp_min_bound(grad: Any, default: Any, input: Any, min: Any) -> Any:
        return clamp_lower(grad, default, input, min, None)

    def clamp_max_input(grad: Any, default: Any, input: Any, max: Any) -> Any:
        return clamp_input(grad, default, input, None, max)

    def clamp_max_bound(grad: Any, default: Any, input: Any, max: Any) -> Any:
        return clamp_upper(grad, default, input, None, max)

    return {
        torch.clamp: {"input": clamp_input, "min": clamp_lower, "max": clamp_upper},
        torch.clamp_min: {"input": clamp_min_input, "min": clamp_min_bound},
        torch.clamp_max: {"input": clamp_max_input, "max": clamp_max_bound},
    }


def _on(input: Any, bound: Any, min: Any, max: Any) -> Any:
    """Where the input lies on a bound."""
    on = input == bound
    return on if min is None or max is None else on & (min < max)
