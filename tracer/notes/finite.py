"""Whether the result of each call is finite, and between what it lies, found out without waiting for it.

At the call only its smallest and largest element are taken, as tensors of no dimension on the call's own device: NaN wins in both. They are
put together a thousand at a time, still unread, and read when somebody asks.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, is_batched, unwrapped
from tracer.node import parts_of, tensors_in

#: How many extremes are put into one tensor.
_TOGETHER = 1024
#: Up to this many elements one kernel for both extremes is faster than one for each.
_SMALL = 4096

#: Smallest and largest element.
Extremes = tuple[float, float]
#: Those of no element at all.
_NONE: Extremes = (math.inf, -math.inf)


def is_finite(extremes: Extremes) -> bool:
    """Whether all that lies between these is finite."""
    low, high = extremes
    return low > -math.inf and high < math.inf  # nan is neither


def joined(one: Extremes, other: Extremes) -> Extremes:
    """Those of both together: nan wins."""
    low, high = min(one[0], other[0]), max(one[1], other[1])
    has_nan = any(value != value for value in (*one, *other))
    return (math.nan, math.nan) if has_nan else (low, high)


class FiniteNotes:
    """What one graph knows of the results of its calls, by serial number."""

    def __init__(self) -> None:
        #: Extremes that stand alone so far.
        self._pending: list[tuple[int, torch.Tensor]] = []
        #: Of many calls each: their numbers, and for each number an extreme, unread.
        self._together: list[tuple[list[int], torch.Tensor]] = []
        #: What has been read. Not there: it cannot be told.
        self._known: dict[int, Extremes] = {}
        #: Calls with a result that has no extremes (float8, meta).
        self._unknown: set[int] = set()

    def note(self, serial: int, result: Any) -> None:
        """Take the extremes of the result of a call."""
        with DisableTorchFunctionSubclass():
            for tensor in tensors_in(result):
                if not self._take(serial, tensor):
                    self._unknown.add(serial)
        if len(self._pending) >= _TOGETHER:
            self._put_together()

    def _take(self, serial: int, tensor: torch.Tensor) -> bool:
        """Note the extremes of one result. Returns False where it has none that say whether it is finite."""
        while is_batched(tensor):
            tensor = unwrapped(tensor)  # all of the batch that it stands for in torch.vmap
        if type(tensor) is torch.Tensor and tensor.requires_grad:  # of torch's own autograd
            tensor = tensor.detach()
        if tensor.layout is not torch.strided:
            # Of what it is stored in, the values alone can be anything but finite; those for one index may add up to too much.
            parts = parts_of(tensor)
            return (
                bool(parts) and not (tensor.is_sparse and not tensor.is_coalesced()) and self._take(serial, parts[-1])
            )
        if tensor.dtype.is_complex:
            tensor = torch.view_as_real(tensor.resolve_conj())
        if tensor.is_meta:
            return False
        size = tensor.numel()
        if not size or not tensor.dtype.is_floating_point:
            self._known.setdefault(serial, _NONE)
            return True
        try:
            extremes = tensor.aminmax() if size <= _SMALL else (tensor.amax(), tensor.amin())
        except RuntimeError:  # no kernel for the dtype
            return False
        self._pending += [(serial, extreme) for extreme in extremes]
        return True

    def _put_together(self) -> None:
        alike: dict[Any, list[tuple[int, torch.Tensor]]] = {}
        for serial, extreme in self._pending:
            alike.setdefault((extreme.device, extreme.dtype), []).append((serial, extreme))
        self._pending = []
        with DisableTorchFunctionSubclass(), torch.no_grad():
            for some in alike.values():
                self._together.append(([serial for serial, _ in some], torch.stack([extreme for _, extreme in some])))

    def read(self) -> None:
        """Wait for what has been noted so far."""
        self._put_together()
        for numbers, extremes in self._together:
            for serial, value in zip(numbers, extremes.tolist(), strict=True):
                self._known[serial] = joined(self._known.get(serial, _NONE), (value, value))
        self._together = []

    def of(self, serial: int) -> bool | None:
        """Whether the results of a call were finite when it was made, as far as that has been read; None where it cannot be told."""
        known = self._known.get(serial)
        if known is None:
            return None
        finite = is_finite(known)
        return None if finite and serial in self._unknown else finite

    def extremes_of(self, serial: int) -> Extremes | None:
        """Smallest and largest element of the results of a call, both nan where it has one; None where none are known."""
        known = self._known.get(serial)
        return None if known is None or known == _NONE or (serial in self._unknown and is_finite(known)) else known

    def drop(self, kept: Container[int]) -> None:
        """Forget all calls but those ``kept``."""
        self._put_together()
        self._together = [pair for pair in self._together if any(n in kept for n in pair[0])]
        self._known = {serial: value for serial, value in self._known.items() if serial in kept}
        self._unknown = {serial for serial in self._unknown if serial in kept}

    def clear(self) -> None:
        """Forget all calls."""
        self.drop(())
