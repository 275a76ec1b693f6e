"""What a value is, from nothing to nan; which of its elements are not finite."""

from __future__ import annotations

import math
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase
from tracer.node import parts_of, tensors_in
from tracer.notes.finite import is_finite

#: What a gradient, or a value, can be, from nothing to worst.
ABSENT, ZERO, FINE, INF, NAN = range(5)
#: How they are told.
TOLD = ("absent", "zero", "finite", "inf", "nan")

#: How many elements are named.
_NAMED = 2


def state_of(value: Any) -> int:
    """Whether a tensor or a number, or the worst in a nest of them, is zero throughout, has an inf or a nan, or is fine."""
    return state_of_size(size_of(value))


def state_of_size(size: float) -> int:
    """The state of what has this size."""
    if size != size:
        return NAN
    return ZERO if size == 0 else FINE if size < math.inf else INF


def size_of(value: Any) -> float:
    """The norm of a tensor or a number, or the largest in a nest: nan or inf where an element is so, and 0 only where all are.

    Where the squares are too large for a number, or too small, it is the largest element.
    """
    if type(value) is torch.Tensor:
        return _size(value)
    if isinstance(value, float | complex):
        value = torch.tensor(value)
    with DisableTorchFunctionSubclass():
        sizes = [_size(tensor) for tensor in tensors_in(value)]
    return math.nan if any(size != size for size in sizes) else max(sizes, default=0.0)


def is_bad(value: Any) -> bool:
    """Whether something in it is not finite."""
    return state_of(value) > FINE


def _size(tensor: torch.Tensor) -> float:
    if tensor.is_meta:
        return 1.0  # it has no values
    plain = values_in(tensor)
    if plain is None or not plain.numel():
        return 0.0
    if plain.dtype.is_complex:
        plain = torch.view_as_real(plain.resolve_conj())
    size = float(torch.linalg.vector_norm(plain, dtype=torch.float32 if plain.dtype.itemsize == 2 else None).item())
    if 0 < size < math.inf:
        return size
    low, high = (float(extreme.item()) for extreme in plain.aminmax())
    return low if low != low else max(-low, high)  # nan wins in both


def of_extremes(finite: bool | None, extremes: tuple[float, float] | None) -> int:
    """The state of what was noted of a call; what is not known passes for fine."""
    if finite is not False:
        return FINE
    return INF if extremes is not None and extremes[0] == extremes[0] and not is_finite(extremes) else NAN


def values_in(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor that can be something else than finite, as a plain one; None where there are none to look at."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return None
    parts = parts_of(tensor)
    if not parts:
        return None
    plain = TensorBase.detach(parts[-1])  # not that of our class, which would note a cut
    return plain.float() if plain.dtype.itemsize == 1 else plain  # float8 has few kernels


def bad_elements(tensor: torch.Tensor) -> tuple[list[tuple[int, ...]], int]:
    """The first indices at which a dense tensor is as bad as it gets, and how many there are."""
    with DisableTorchFunctionSubclass(), torch.no_grad():
        plain = values_in(tensor)
        if plain is None or tensor.layout is not torch.strided:
            return [], 0
        mask = plain.isnan()
        if not bool(mask.any()):
            mask = plain.isinf()
        found = mask.nonzero()
        return [tuple(index) for index in found[:_NAMED].tolist()], len(found)


def element(tensor: torch.Tensor, index: tuple[int, ...], shape: torch.Size) -> str | None:
    """The element of ``tensor``, broadcast to ``shape``, at ``index``; None where it has no such."""
    with DisableTorchFunctionSubclass(), torch.no_grad():
        if tensor.layout is not torch.strided or tensor.is_meta:
            return None
        try:
            value = tensor.detach().expand(shape)[index]
        except (RuntimeError, IndexError):
            return None
        return number(value.item())


def span(tensor: torch.Tensor) -> str | None:
    """``between -1 and 3``; None of a tensor without order."""
    with DisableTorchFunctionSubclass(), torch.no_grad():
        plain = values_in(tensor)
        if plain is None or plain.is_complex() or not plain.numel():
            return None
        return between((float(plain.amin()), float(plain.amax())))


def between(extremes: tuple[float, float]) -> str:
    """The text of a smallest and a largest element."""
    low, high = extremes
    if low != low:
        return "holds nan"
    return f"is {number(low)}" if low == high else f"between {number(low)} and {number(high)}"


def number(value: Any) -> str:
    """A number as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def around(index: tuple[int, ...], shape: torch.Size, values: dict[str, Any]) -> str:
    """What stands in some arguments and results at the place of an element of a tensor of this shape, or between what they lie."""
    return ", ".join(text for name, value in values.items() if (text := _given(name, value, index, shape)))


def _given(name: str, value: Any, index: tuple[int, ...], shape: torch.Size) -> str | None:
    if isinstance(value, float) or (type(value) is int and name in ("exponent", "other")):
        return f"{name} = {number(value)}"
    if not isinstance(value, torch.Tensor):
        return None
    one = element(value, index, shape)
    if one is not None:
        return f"{at(name, index)} = {one}"
    text = span(value)
    return None if text is None else f"{name} {text}"


def at(name: str, index: tuple[int, ...]) -> str:
    """``result[0, 3]``; of a tensor without dimensions its name."""
    return f"{name}{list(index)}" if index else name
