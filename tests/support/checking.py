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

    #: The rule's name as ``ops_registry.rules()`` lists it.
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
    return [i for i in items if isinstance(i, torch.Tensor) and (i.is_floating_point() or i.is_complex())]


def plain(tensor: Any) -> Any:
    """A tracked tensor as a plain one without history."""
    if tensor is None:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return torch._C.TensorBase.detach(tensor)


def cotangents(outputs: list[torch.Tensor], seed: int = 1) -> list[torch.Tensor]:
    """Random cotangents, the same for the same shapes."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for out in outputs:
        wide = torch.complex128 if out.is_complex() else torch.float64
        made.append(torch.randn(tuple(out.shape), generator=generator, dtype=wide).to(out.dtype).to(out.device))
    return made


def derivatives(
    function: Callable[..., Any], leaves: list[torch.Tensor], wanted: tuple[int, ...], second: bool
) -> tuple[list[Any], list[Any], list[Any]]:
    """Results, first and second derivatives with respect to the wanted leaves, all plain."""
    torch.manual_seed(42)
    outputs = as_outputs(function(*leaves))
    inputs = [leaves[i] for i in wanted]
    live = [o for o in outputs if o.requires_grad]
    assert live, "no output requires grad"
    seeds = cotangents(live)
    first = torch.autograd.grad(live, inputs, seeds, create_graph=second, allow_unused=True)
    seconds: list[Any] = [None] * len(inputs)
    if second:
        again = [(g, c) for g, c in zip(first, cotangents(inputs, 2), strict=True) if g is not None and g.requires_grad]
        if again:
            seconds = list(torch.autograd.grad([g for g, _ in again], inputs, [c for _, c in again], allow_unused=True))
    return [plain(o) for o in outputs], [plain(g) for g in first], [plain(g) for g in seconds]


def assert_same(ours: Any, theirs: Any, like: torch.Tensor, what: str, rtol: float, atol: float) -> None:
    """Equal values, dtype and shape; None counts as zeros."""
    if ours is None and theirs is None:
        return
    ours = torch.zeros_like(like) if ours is None else ours
    theirs = torch.zeros_like(like) if theirs is None else theirs
    assert ours.dtype == theirs.dtype, f"{what}: dtype {ours.dtype}, torch has {theirs.dtype}"
    assert ours.shape == theirs.shape, f"{what}: shape {tuple(ours.shape)}, torch has {tuple(theirs.shape)}"
    torch.testing.assert_close(
        ours.to_dense() if ours.layout != torch.strided else ours,
        theirs.to_dense() if theirs.layout != torch.strided else theirs,
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )


def run_case(c: Case, device: torch.device) -> None:
    """Check one case: against torch for each set of wanted inputs, against central differences with all of them."""
    data = [make(device) for make in c.inputs]
    differentiable = [i for i, d in enumerate(data) if d.is_floating_point() or d.is_complex()]
    subsets = c.needs or tuple(
        s for n in range(1, len(differentiable) + 1) for s in itertools.combinations(differentiable, n)
    )
    for wanted in subsets:
        ours = [tracer.track(d.clone(), i in wanted) for i, d in enumerate(data)]
        native = [d.clone().requires_grad_(i in wanted) for i, d in enumerate(data)]
        out, first, second = derivatives(c.function, ours, wanted, bool(c.second))
        if c.torch_agrees:
            their_out, their_first, their_second = derivatives(c.function, native, wanted, c.second is True)
            for a, b in zip(out, their_out, strict=True):
                assert_same(a, b, b, "value", c.rtol, c.atol)
            for k, i in enumerate(wanted):
                assert_same(first[k], their_first[k], data[i], f"gradient of input {i} of {wanted}", c.rtol, c.atol)
                if c.second is True:
                    what = f"second derivative of input {i} of {wanted}"
                    assert_same(second[k], their_second[k], data[i], what, c.rtol, c.atol)
        if c.second == "differences":
            check_second_differences(c.function, data, wanted, second)
        if c.differences and len(wanted) == len(differentiable):
            check_differences(c.function, data, wanted, first)


def inner(left: list[Any], right: list[torch.Tensor]) -> torch.Tensor:
    """The real inner product of two lists of tensors; None counts as zeros."""
    return sum(((a * b.conj()).real.sum() for a, b in zip(left, right, strict=True) if a is not None), torch.zeros(()))


def check_differences(
    function: Callable[..., Any],
    data: list[torch.Tensor],
    wanted: tuple[int, ...],
    grads: list[Any],
    step: float = 1e-6,
) -> None:
    """``<gradient, v>`` equals the central difference along a random direction ``v``."""
    directions = cotangents([data[i] for i in wanted], 3)

    def loss(sign: float) -> torch.Tensor:
        moved = list(data)
        for i, v in zip(wanted, directions, strict=True):
            moved[i] = data[i] + sign * step * v
        torch.manual_seed(42)
        outputs = as_outputs(function(*moved))
        return inner(outputs, cotangents(outputs))

    measured = (loss(1) - loss(-1)) / (2 * step)
    predicted = inner(grads, directions)
    torch.testing.assert_close(
        predicted, measured, rtol=1e-5, atol=1e-6, check_dtype=False, msg=lambda m: f"central difference: {m}"
    )


def check_second_differences(
    function: Callable[..., Any], data: list[torch.Tensor], wanted: tuple[int, ...], seconds: list[Any]
) -> None:
    """The second derivatives equal central differences of our own first ones."""

    def first(*inputs: torch.Tensor) -> list[torch.Tensor]:
        leaves = [tracer.track(t, i in wanted) for i, t in enumerate(inputs)]
        grads = derivatives(function, leaves, wanted, second=False)[1]
        return [torch.zeros_like(inputs[i]) if g is None else g for i, g in zip(wanted, grads, strict=True)]

    directions = dict(zip(wanted, cotangents([data[i] for i in wanted], 3), strict=True))

    def contracted(sign: float) -> torch.Tensor:
        moved = [t + sign * 1e-6 * directions[i] if i in directions else t for i, t in enumerate(data)]
        # The cotangents with which ``derivatives`` contracts the first gradients are those of seed 2.
        return inner(first(*moved), cotangents([data[i] for i in wanted], 2))

    measured = (contracted(1) - contracted(-1)) / 2e-6
    predicted = inner(seconds, list(directions.values()))
    torch.testing.assert_close(
        predicted, measured, rtol=1e-5, atol=1e-6, check_dtype=False, msg=lambda m: f"second, by differences: {m}"
    )


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
