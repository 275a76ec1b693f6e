"""Derivatives held against central differences of values, along one random direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer.checks.derivatives import Call, Derivatives
from tracer.checks.leaves import (
    SEED,
    leaves_of,
    native_leaf,
    plain,
    random_like,
    requiring_grad,
    restart_random,
    tensors_of,
    tracked_leaf,
)

#: Step of central differences in float64, and how far they are from the truth: the truncated terms and the rounding of the values.
STEP = 1e-6


@dataclass(frozen=True)
class Slope:
    """A derivative along one direction: by backward and by central differences."""

    predicted: float
    measured: float
    #: How large the terms are that sum up to it; what cancels in the sum leaves the error of its terms.
    scale: float
    #: How much the slopes on both sides differ: large at a corner or a jump, where there is no derivative to measure.
    doubt: float

    @property
    def certain(self) -> bool:
        """Whether there is a derivative that differences can measure."""
        return self.doubt < 1e-3 * max(1.0, self.scale)

    @property
    def agrees(self) -> bool:
        """Whether both derivatives are the same, as far as differences can tell."""
        return abs(self.predicted - self.measured) <= 1e-5 * max(self.scale, abs(self.measured)) + 1e-6


def inner(left: Sequence[torch.Tensor | None], right: Sequence[torch.Tensor]) -> tuple[float, float]:
    """The real inner product of two lists of tensors (None counts as zeros), and that of their absolute values."""
    total = scale = 0.0
    for a, b in zip(left, right, strict=True):
        if a is not None and a.numel():
            wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
            products = (a.to_dense().to(wide) * b.to(wide).conj()).real
            total += float(products.sum())
            scale += float(products.abs().sum())
    return total, scale


def slope_of(
    loss: Callable[[list[torch.Tensor]], tuple[float, float]],
    points: list[torch.Tensor],
    found: Sequence[torch.Tensor | None],
) -> Slope:
    """The derivative of ``loss`` along a random direction from ``points``, where backward ``found`` these gradients.

    ``loss`` gives its value and the sum of the absolute values of what it sums up.
    """
    directions = random_like(points, 3)
    up, here, down = (
        loss([p + sign * STEP * v for p, v in zip(points, directions, strict=True)]) for sign in (1, 0, -1)
    )
    predicted, scale = inner(found, directions)
    doubt = abs(up[0] - 2 * here[0] + down[0]) / STEP
    # Where values are large their own rounding shows in the difference.
    return Slope(predicted, (up[0] - down[0]) / (2 * STEP), scale + 1e-4 * here[1], doubt)


def first_by_differences(call: Call, values: Sequence[Any], wanted: Sequence[int], ours: Derivatives) -> Slope:
    """Our first derivatives against differences of the results, contracted with the cotangents of ``differentiate``."""

    def loss(points: list[torch.Tensor]) -> tuple[float, float]:
        at = list(values)
        for i, point in zip(wanted, points, strict=True):
            at[i] = point
        restart_random(SEED)
        outputs = [plain(o) for o in tensors_of(call(leaves_of(at, (), native_leaf)))]
        live = [o for o, lives in zip(outputs, ours.requires_grad, strict=True) if lives]
        return inner(live, random_like(live, 1))

    return slope_of(loss, [plain(values[i]) for i in wanted], ours.first)


def second_by_differences(call: Call, values: Sequence[Any], wanted: Sequence[int], ours: Derivatives) -> Slope:
    """Our second derivatives against differences of our own first ones, with respect to the wanted leaves and the cotangents."""
    live = [o for o, lives in zip(ours.outputs, ours.requires_grad, strict=True) if lives]

    def loss(points: list[torch.Tensor]) -> tuple[float, float]:
        at = list(values)
        for i, point in zip(wanted, points, strict=False):
            at[i] = point
        leaves = leaves_of(at, wanted, tracked_leaf)
        restart_random(SEED)
        outputs = requiring_grad(call(leaves))
        inputs = [leaves[i] for i in wanted]
        first = torch.autograd.grad(outputs, inputs, points[len(wanted) :], allow_unused=True)
        return inner([None if g is None else plain(g) for g in first], random_like(inputs, 2))

    return slope_of(loss, [plain(values[i]) for i in wanted] + random_like(live, 1), ours.second)
