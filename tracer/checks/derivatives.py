"""How a gradient is checked: the derivatives of one call by tracked tensors, by torch and by central differences, and what differs.

What ``check_rule``, the conformance command and the project's own rule tests have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase

#: Takes the leaves of a call (tensors and other arguments), and returns the op's result.
Call = Callable[[list[Any]], Any]
#: Makes a leaf of a plain tensor, which requires grad if the second argument says so.
MakeLeaf = Callable[[torch.Tensor, bool], torch.Tensor]

#: The random state in which every call is made, so that random ops draw the same.
SEED = 42

#: Step of central differences in float64, and how far they are from the truth: the truncated terms and the rounding of the values.
STEP = 1e-6


# ---------------------------------------------------------------------------------------------- tensors
def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values without a history."""
    with DisableTorchFunctionSubclass():
        return TensorBase.detach(tensor)


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in memory as the original does, gaps and repeated elements included."""
    source = plain(tensor)
    if source.layout != torch.strided or source.is_conj() or source.is_neg() or source.is_nested:
        return source.clone()
    empty = torch.empty(0, dtype=source.dtype, device=source.device)
    return empty.set_(source.untyped_storage().clone(), source.storage_offset(), source.size(), source.stride())


def strewn(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, lying in memory with gaps and with the axes in reverse order."""
    axes = list(range(tensor.dim()))[::-1]
    turned = plain(tensor).permute(axes)
    return torch.stack((turned, turned), -1)[..., 0].permute(axes)


def can_have_gradient(value: Any) -> bool:
    """Whether a gradient can flow to it."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def random_like(tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """A random cotangent for each; complex ones have both parts. The same for the same shapes, whatever the class of the tensor."""
    made = []
    for i, tensor in enumerate(tensors):
        generator = torch.Generator().manual_seed(1000 * seed + i)
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        values = torch.randn(tuple(tensor.shape), generator=generator, dtype=wide)
        made.append(values.to(device=tensor.device, dtype=tensor.dtype))
    return made


def native_leaf(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A leaf of torch's autograd."""
    return tensor.requires_grad_(requires_grad)


def tracked_leaf(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A leaf of ours."""
    from tracer import track

    return track(tensor, requires_grad)


def leaves_of(values: Sequence[Any], wanted: Sequence[int], leaf: MakeLeaf) -> list[Any]:
    """The values of a call with fresh leaves in place of the tensors; one that stands at two places stays one."""
    copies: dict[int, Any] = {}
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor) and id(value) not in copies:
            copies[id(value)] = leaf(twin(value), i in wanted)
    return [copies.get(id(v), v) for v in values]


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

    Second derivatives are taken with respect to the cotangents too: those of a linear op are all there.
    """
    torch.manual_seed(SEED)
    outputs = [o for o in tree_leaves(call(leaves)) if isinstance(o, torch.Tensor)]
    inputs = [leaves[i] for i in wanted]
    live = [o for o in outputs if o.requires_grad]
    first: list[Any] = [None] * len(inputs)
    second: list[Any] = []
    if live and inputs:
        cotangents = [leaf(c, order == 2) for c in random_like(live, 1)]
        first = list(torch.autograd.grad(live, inputs, cotangents, create_graph=order == 2, allow_unused=True))
        if order == 2:
            second = [None] * (len(inputs) + len(cotangents))
            pairs = zip(first, random_like(inputs, 2), strict=True)
            again = [(g, c) for g, c in pairs if g is not None and g.requires_grad]
            if again:
                roots, seeds = map(list, zip(*again, strict=True))
                second = list(torch.autograd.grad(roots, [*inputs, *cotangents], seeds, allow_unused=True))
    return Derivatives(
        [plain(o) for o in outputs],
        [o.requires_grad for o in outputs],
        [None if g is None else plain(g) for g in first],
        [None if g is None else plain(g) for g in second],
        [plain(t) for t in leaves if isinstance(t, torch.Tensor)],
    )


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


def first_difference(ours: Derivatives, theirs: Derivatives, tolerance: Tolerance) -> Difference | None:
    """The first difference from what torch gives. Second derivatives are compared where both have any."""
    if ours.requires_grad != theirs.requires_grad:
        return Difference(
            "", 0, f"requires_grad of the results is {ours.requires_grad}, torch has {theirs.requires_grad}"
        )
    groups: list[tuple[str, Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]]] = [
        ("result", ours.outputs, theirs.outputs),
        ("argument afterwards", ours.arguments, theirs.arguments),
        ("first derivative", ours.first, theirs.first),
    ]
    if ours.second and theirs.second:
        groups.append(("second derivative", ours.second, theirs.second))
    for what, left, right in groups:
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            if a is None and b is None:
                continue
            a, b = _as_zeros(a, b), _as_zeros(b, a)
            aspect = differs(a, b, *tolerance(b))
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


# ---------------------------------------------------------------------------------------------- against differences
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
        torch.manual_seed(SEED)
        outputs = [plain(o) for o in tree_leaves(call(leaves_of(at, (), native_leaf))) if isinstance(o, torch.Tensor)]
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
        torch.manual_seed(SEED)
        outputs = [o for o in tree_leaves(call(leaves)) if isinstance(o, torch.Tensor) and o.requires_grad]
        inputs = [leaves[i] for i in wanted]
        first = torch.autograd.grad(outputs, inputs, points[len(wanted) :], allow_unused=True)
        return inner([None if g is None else plain(g) for g in first], random_like(inputs, 2))

    return slope_of(loss, [plain(values[i]) for i in wanted] + random_like(live, 1), ours.second)
