"""The common check of a rule: value, first and second derivatives, for every set of inputs that want a gradient.

A test file lists ``CASES``; ``run_case`` checks one on a device. Truth is torch's own autograd on the same inputs and central
differences in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

import tracer
from ops_registry.registry import RULES
from tracer.checks import leaves as checked_leaves
from tracer.checks import tangents
from tracer.checks.derivatives import differentiate, first_difference
from tracer.checks.leaves import (
    SEED,
    can_have_gradient,
    leaves_of,
    native_leaf,
    random_like,
    restart_random,
    tracked_leaf,
)
from tracer.checks.slopes import first_by_differences, inner, second_by_differences, slope_of

Make = Callable[[torch.device], torch.Tensor]


def rand(*shape: int, dtype: torch.dtype = torch.float64, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Make:
    """A uniform random tensor, made when the test runs. Two calls with one shape give different values only by ``seed``."""

    def make(device: torch.device) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed + 7919 * len(shape) + sum(shape))
        real = torch.float64 if not dtype.is_complex else torch.complex128
        values = torch.rand(shape, generator=generator, dtype=real)
        if dtype.is_complex:
            values = torch.view_as_complex(torch.view_as_real(values) * (high - low) + low)
        else:
            values = values * (high - low) + low
        return values.to(dtype).to(device)

    return make


def values(data: Any, dtype: torch.dtype = torch.float64) -> Make:
    """A tensor of these values."""
    return lambda device: torch.tensor(data, dtype=dtype, device=device)


@dataclass(frozen=True)
class Case:
    """One call of an op: ``function(*inputs)``, every input wanting a gradient in turn and together."""

    #: The rule's name as ``ops_registry.list_rules()`` lists it.
    rule: str
    function: Callable[..., Any]
    inputs: tuple[Make, ...]
    #: Compare second derivatives with torch's, or, where torch has none, with central differences of our first ones.
    second: bool | Literal["differences"] = True
    #: Compare with central differences too; off at kinks, in low precision and for random ops.
    differences: bool = True
    #: torch's own gradient is the truth; off where torch is known to be wrong (central differences then decide alone).
    torch_agrees: bool = True
    rtol: float = 1e-9
    atol: float = 1e-9
    label: str = ""
    needs: tuple[tuple[int, ...], ...] | None = field(default=None)

    def __str__(self) -> str:
        return f"{self.rule}-{self.label}" if self.label else self.rule


def case(rule: str, function: Callable[..., Any], *inputs: Make, **options: Any) -> Case:
    """A ``Case``, with the inputs as positional arguments."""
    return Case(rule, function, tuple(inputs), **options)


def as_outputs(result: Any) -> list[torch.Tensor]:
    """The differentiable tensors of a result."""
    items = [result] if isinstance(result, torch.Tensor) else list(result)
    return [i for i in items if can_have_gradient(i)]


def plain(tensor: Any) -> Any:
    """A tracked tensor as a plain one without history; None stays None."""
    return None if tensor is None else checked_leaves.plain(tensor)


def cotangents(outputs: list[torch.Tensor], seed: int = 1) -> list[torch.Tensor]:
    """Random cotangents, the same for the same shapes."""
    return random_like(outputs, seed)


def derivatives(
    function: Callable[..., Any], leaves: list[torch.Tensor], wanted: tuple[int, ...], second: bool
) -> tuple[list[Any], list[Any], list[Any]]:
    """Results, first and second derivatives with respect to the wanted leaves, all plain."""
    leaf = tracked_leaf if any(isinstance(t, tracer.Tensor) for t in leaves) else native_leaf
    found = differentiate(lambda at: function(*at), leaves, wanted, 2 if second else 1, leaf)
    assert any(found.requires_grad), "no output requires grad"
    return found.outputs, found.first, found.second[: len(wanted)] or [None] * len(wanted)


def run_case(c: Case, device: torch.device) -> None:
    """Check one case: against torch for each set of wanted inputs, against central differences with all of them."""
    data = [make(device) for make in c.inputs]
    differentiable = [i for i, d in enumerate(data) if can_have_gradient(d)]
    subsets = c.needs or tuple(
        s for n in range(1, len(differentiable) + 1) for s in itertools.combinations(differentiable, n)
    )

    def call(leaves: list[Any]) -> Any:
        return c.function(*leaves)

    for wanted in subsets:
        leaves = leaves_of(data, wanted, tracked_leaf)
        ours = differentiate(call, leaves, wanted, 2 if c.second else 1, tracked_leaf)
        assert any(ours.requires_grad), "no output requires grad"
        if c.torch_agrees:
            natives = leaves_of(data, wanted, native_leaf)
            theirs = differentiate(call, natives, wanted, 2 if c.second is True else 1, native_leaf)
            found = first_difference(ours, theirs, lambda _: (c.rtol, c.atol))
            assert found is None, f"inputs {wanted}: {found}"
        if c.second:  # a formula may go another way where backward is not recorded
            unrecorded = differentiate(call, leaves_of(data, wanted, tracked_leaf), wanted, 1, tracked_leaf)
            found = first_difference(unrecorded, ours, lambda _: (c.rtol, c.atol))
            assert found is None, f"inputs {wanted}, without create_graph against with it: {found}"
        check_tangents(c, call, data, wanted)
        if c.second == "differences":
            slope = second_by_differences(call, data, wanted, ours)
            assert slope.agrees, f"second derivatives by differences, inputs {wanted}: {slope}"
        if c.differences and len(wanted) == len(differentiable):
            slope = first_by_differences(call, data, wanted, ours)
            assert slope.agrees, f"first derivatives by differences: {slope}"


def check_tangents(c: Case, call: Callable[[list[Any]], Any], data: list[Any], wanted: tuple[int, ...]) -> None:
    """Tangents that a rule lets through its op or its formula are those of its gradient."""
    rule = RULES.get(c.rule)
    if rule is None or not (rule.linear or rule.symmetric):
        return
    pair = tangents.products(call, data, wanted)
    tolerance = 1e-7 if c.differences else 1e-3  # a case without differences may round to half precision on its way
    assert pair is None or tangents.agree(pair, tolerance), (
        f"inputs {wanted}: <c, J v> = {pair[0]}, <J' c, v> = {pair[1]}"
    )


def check_differences(
    function: Callable[..., Any], data: list[torch.Tensor], wanted: tuple[int, ...], grads: list[Any]
) -> None:
    """``<gradient, v>`` equals the central difference along a random direction ``v``; the results are contracted with ``cotangents``."""

    def loss(points: list[torch.Tensor]) -> tuple[float, float]:
        moved = list(data)
        for i, point in zip(wanted, points, strict=True):
            moved[i] = point
        restart_random(SEED)
        outputs = as_outputs(function(*moved))
        return inner(outputs, cotangents(outputs))

    slope = slope_of(loss, [data[i] for i in wanted], grads)
    assert slope.agrees, f"central difference: {slope}"


def check_under_autocast(
    function: Callable[..., Any], makers: Sequence[Make], device: torch.device, rtol: float = 0, atol: float = 0
) -> None:
    """Under autocast the result and the gradients are torch's, dtypes included; to the bit unless tolerances are given."""
    found = []
    for track in (True, False):
        data = [make(device) for make in makers]
        leaves = [tracer.track(d, True) if track else d.requires_grad_() for d in data]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = function(*leaves)
        out.backward(cotangents([out])[0])
        found.append([plain(t) for t in (out, *(leaf.grad for leaf in leaves))])
    torch.testing.assert_close(*found, rtol=rtol, atol=atol)
