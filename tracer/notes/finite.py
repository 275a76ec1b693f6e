"""Whether the result of each call is finite, found out without waiting for it.

At the call only its smallest and largest element are taken, as tensors of no dimension on the call's own device: NaN wins in both. They are
put together a thousand at a time, still unread, and read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, is_batched
from tracer.node import parts_of, tensors_in

#: How many extremes are put into one tensor.
_TOGETHER = 1024
#: Up to this many elements one kernel for both extremes is faster than one for each.
_SMALL = 4096


class FiniteNotes:
    """What one graph knows of the results of its calls, by serial number."""

    def __init__(self) -> None:
        #: Extremes that stand alone so far.
        self._pending: list[tuple[int, torch.Tensor]] = []
        #: Of many calls each: their numbers, and for each number whether what stands for it is finite, unread.
        self._together: list[tuple[list[int], torch.Tensor]] = []
        #: What has been read. Not there: it cannot be told.
        self._known: dict[int, bool] = {}
        #: Calls with a result that has no extremes (float8, a batch of torch.vmap).
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
        if tensor.is_meta or is_batched(tensor):
            return False
        size = tensor.numel()
        if not size or not tensor.dtype.is_floating_point:
            self._known.setdefault(serial, True)
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
                finite = torch.stack([extreme for _, extreme in some]).isfinite()
                self._together.append(([serial for serial, _ in some], finite))

    def read(self) -> None:
        """Wait for what has been noted so far."""
        self._put_together()
        for numbers, finite in self._together:
            for serial, value in zip(numbers, finite.tolist(), strict=True):
                self._known[serial] = value and self._known.get(serial, True)
        self._together = []

    def of(self, serial: int) -> bool | None:
        """Whether the results of a call were finite when it was made, as far as that has been read; None where it cannot be told."""
        known = self._known.get(serial)
        return None if known and serial in self._unknown else known

    def drop(self, kept: Container[int]) -> None:
        """Forget all calls but those ``kept``."""
        self._put_together()
        self._together = [(numbers, finite) for numbers, finite in self._together if any(n in kept for n in numbers)]
        self._known = {serial: value for serial, value in self._known.items() if serial in kept}
        self._unknown = {serial for serial in self._unknown if serial in kept}

    def clear(self) -> None:
        """Forget all calls."""
        self.drop(())
