"""The derivatives of one call, by tracked tensors or by torch, and the first thing in which two sets of them differ.

What ``check_rule``, the conformance command and the project's own rule tests have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.errors import GlassgradError
from tracer.checks.leaves import SEED, MakeLeaf, native_leaf, plain, random_like, restart_random, tensors_of

#: Takes the leaves of a call (tensors and other arguments), and returns the op's result.
Call = Callable[[list[Any]], Any]


class BackwardDiffersError(GlassgradError):
    """``.backward()`` leaves another gradient in a leaf's ``.grad`` than ``torch.autograd.grad`` returns for it."""


# ---------------------------------------------------------------------------------------------- derivatives
@dataclass
class Derivatives:
    """What one call gave, all of it plain."""

    outputs: list[torch.Tensor]
    requires_grad: list[bool]
    first: list[torch.Tensor | None]
    #: With respect to the wanted leaves, then to the cotangents of the results that require grad; empty where not asked for.
    second: list[torch.Tensor | None]
    #: The arguments as they are afterwards: running statistics are written into.
    arguments: list[torch.Tensor]


def differentiate(call: Call, leaves: list[Any], wanted: Sequence[int], order: int, leaf: MakeLeaf) -> Derivatives:
    """Values and derivatives of ``call`` with respect to the wanted leaves.

    Second derivatives are taken with respect to the cotangents too: those of a linear op are all there. First derivatives of tracked
    leaves are taken twice, by ``torch.autograd.grad`` and by ``.backward()``, whose sweep goes another way through the engine: the one
    that training goes. Raises ``BackwardDiffersError`` where the two are not the same to the bit.
    """
    restart_random(SEED)
    outputs = tensors_of(call(leaves))
    inputs = [leaves[i] for i in wanted]
    live = [o for o in outputs if o.requires_grad]
    first: list[torch.Tensor | None] = [None] * len(inputs)
    second: list[torch.Tensor | None] = []
    if live and inputs:
        cotangents = [leaf(c, order == 2) for c in random_like(live, 1)]
        if order == 2:
            first, second = _first_and_second(live, inputs, cotangents)
        else:
            tracked = leaf is not native_leaf
            first = _gradients(live, inputs, cotangents, retain_graph=tracked)
            if tracked:
                _check_backward(live, inputs, cotangents, first)
    return Derivatives(
        [plain(o) for o in outputs],
        [o.requires_grad for o in outputs],
        [None if g is None else plain(g) for g in first],
        [None if g is None else plain(g) for g in second],
        [plain(t) for t in leaves if isinstance(t, torch.Tensor)],
    )


def _gradients(
    roots: list[torch.Tensor], inputs: list[torch.Tensor], cotangents: list[torch.Tensor], **options: bool
) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(roots, inputs, cotangents, allow_unused=True, **options))


def _first_and_second(
    live: list[torch.Tensor], inputs: list[torch.Tensor], cotangents: list[torch.Tensor]
) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
    first = _gradients(live, inputs, cotangents, create_graph=True)
    second: list[torch.Tensor | None] = [None] * (len(inputs) + len(cotangents))
    pairs = zip(first, random_like(inputs, 2), strict=True)
    again = [(g, c) for g, c in pairs if g is not None and g.requires_grad]
    if again:
        roots, seeds = map(list, zip(*again, strict=True))
        second = _gradients(roots, [*inputs, *cotangents], seeds)
    return first, second


def _check_backward(
    live: list[torch.Tensor],
    inputs: list[torch.Tensor],
    cotangents: list[torch.Tensor],
    first: list[torch.Tensor | None],
) -> None:
    torch.autograd.backward(live, cotangents)
    for i, (x, wanted) in enumerate(zip(inputs, first, strict=True)):
        if wanted is not None and x.layout is torch.strided and wanted.layout is not torch.sparse_coo:
            wanted = wanted.to_dense()  # .grad of a dense tensor cannot be of a compressed layout
        if not _same(x.grad, wanted):
            raise BackwardDiffersError(f"backward() differs from grad() (wanted input {i}: {_apart(x.grad, wanted)})")
    for x in inputs:
        x.grad = None


def _same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    """To the bit; where kernels add in no fixed order, as on a GPU, up to rounding."""
    if left is None or right is None:
        return left is right
    left, right = plain(left), plain(right)
    if (left.shape, left.dtype, left.device, left.layout) != (right.shape, right.dtype, right.device, right.layout):
        return False
    left, right = left.to_dense(), right.to_dense()
    rounding = 0.0 if left.device.type == "cpu" else 64 * torch.finfo(left.dtype).eps
    return torch.allclose(left, right, rtol=rounding, atol=rounding, equal_nan=True)


def _apart(filled: torch.Tensor | None, returned: torch.Tensor | None) -> str:
    if filled is not None and returned is not None and filled.shape == returned.shape:
        return how_far(plain(filled), plain(returned))[0]
    kinds = ["None" if g is None else f"{str(g.dtype)[6:]}{list(g.shape)}" for g in (filled, returned)]
    return f"{kinds[0]} in place of {kinds[1]}"


# ---------------------------------------------------------------------------------------------- against torch
@dataclass(frozen=True)
class Difference:
    """The first thing in which two sets of derivatives differ."""

    #: ``"result"``, ``"argument afterwards"``, ``"first derivative"`` or ``"second derivative"``; empty for ``requires_grad``.
    what: str
    #: Which of them.
    index: int
    #: What is different about it.
    aspect: str
    #: Where they are furthest apart, and how far, relative to the largest element.
    detail: str = ""
    error: float = float("inf")

    @property
    def cause(self) -> str:
        """Said so that the same fault of two operators reads the same."""
        return f"{self.what}: {self.aspect}" if self.what else self.aspect


#: Relative and absolute tolerance for a tensor of torch's.
Tolerance = Callable[[torch.Tensor], tuple[float, float]]


def differs(ours: torch.Tensor, theirs: torch.Tensor, rtol: float, atol: float) -> str:
    """What is different between two tensors; empty if nothing is."""
    for aspect in ("shape", "dtype", "device", "layout"):
        a, b = getattr(ours, aspect), getattr(theirs, aspect)
        if a != b:
            return f"{aspect} {a}, torch has {b}"
    if ours.layout != torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    if torch.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    if not bool((ours.isnan() == theirs.isnan()).all()):
        return (
            "nan where torch has none" if bool((ours.isnan() & ~theirs.isnan()).any()) else "no nan where torch has one"
        )
    return "values differ"


def to_the_bit(theirs: torch.Tensor) -> tuple[float, float]:
    """The tolerance of values that the same kernel computes from the same arguments."""
    return 0.0, 0.0


def first_difference(
    ours: Derivatives, theirs: Derivatives, tolerance: Tolerance, value_tolerance: Tolerance | None = None
) -> Difference | None:
    """The first difference from what torch gives. Second derivatives are compared where both have any.

    ``value_tolerance`` is that of the results and of the arguments afterwards, where it is another.
    """
    values = value_tolerance or tolerance
    if ours.requires_grad != theirs.requires_grad:
        return Difference(
            "", 0, f"requires_grad of the results is {ours.requires_grad}, torch has {theirs.requires_grad}"
        )
    groups: list[tuple[str, Tolerance, Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]]] = [
        ("result", values, ours.outputs, theirs.outputs),
        ("argument afterwards", values, ours.arguments, theirs.arguments),
        ("first derivative", tolerance, ours.first, theirs.first),
    ]
    if ours.second and theirs.second:
        groups.append(("second derivative", tolerance, ours.second, theirs.second))
    for what, allowed, left, right in groups:
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            if a is None and b is None:
                continue
            a, b = _as_zeros(a, b), _as_zeros(b, a)
            aspect = differs(a, b, *allowed(b))
            if aspect:
                return Difference(what, i, aspect, *(how_far(a, b) if aspect == "values differ" else ()))
    return None


def how_far(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[str, float]:
    """The largest difference and where it is; and its size relative to the largest element."""
    ours, theirs = ours.to_dense(), theirs.to_dense()
    error = (ours.to(torch.complex128) - theirs.to(torch.complex128)).abs()
    error = torch.where(ours.isnan() & theirs.isnan(), 0, error.nan_to_num(torch.inf, torch.inf))
    place = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    scale = float(theirs.to(torch.complex128).abs().nan_to_num(0, 0, 0).max())
    text = f"{ours[place].item():.10g} in place of {theirs[place].item():.10g} at {list(place)}"
    return text, float(error.max()) / (scale or 1.0)


def _as_zeros(tensor: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor:
    """The tensor; zeros as the other one where there is none, which means the same."""
    if tensor is not None:
        return tensor
    assert other is not None
    return torch.zeros_like(other)
