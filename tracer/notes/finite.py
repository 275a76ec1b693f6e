"""Whether the result of each call is finite, and between what it lies, found out without waiting for it.

At the call only its smallest and largest element are taken, as tensors of no dimension on the call's own device: NaN wins in both. They are
put together some hundreds at a time, still unread, and read when somebody asks. On the CPU the usual ones are written into room that is
there: a new tensor for each costs more than finding them, and the garbage collector is called for so many. A large view of all elements of
a result has the extremes of that: looking through memory in another order takes longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase
from tracer.node import Node, parts_of, tensors_in

#: Of so many results the extremes are put into one tensor.
_TOGETHER = 256
#: Up to this many elements one kernel for both extremes is faster than one for each.
_SMALL = 16384

#: Up to this many elements looking is as cheap as knowing what a view is of.
_TINY = 512
#: Results of these are views of all elements of their argument.
_OF_ALL = {"view", "view_as", "unflatten", "squeeze", "unsqueeze", "transpose", "swapdims", "swapaxes", "permute"}
_OF_ALL |= {"movedim", "t", "T", "mT", "H", "mH", "adjoint"}

#: Smallest and largest element.
Extremes = tuple[float, float]
#: Of many calls: their numbers, and for each the row in which its extremes stand.
_Unread = tuple[list[int], Sequence[int], torch.Tensor]
#: Those of no element at all.
_NONE: Extremes = (math.inf, -math.inf)

_PLAIN = torch.Tensor
_strided = torch.strided
_aminmax = torch.aminmax
_amin, _amax = torch.amin, torch.amax
_USUAL = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))


def is_finite(extremes: Extremes) -> bool:
    """Whether all that lies between these is finite."""
    low, high = extremes
    return low > -math.inf and high < math.inf  # nan is neither


def joined(one: Extremes, other: Extremes) -> Extremes:
    """Those of both together: nan wins."""
    has_nan = any(value != value for value in (*one, *other))
    return (math.nan, math.nan) if has_nan else (min(one[0], other[0]), max(one[1], other[1]))


class _Room:
    """Room for the extremes of ``_TOGETHER`` results of one dtype on the CPU, used again and again."""

    __slots__ = ("both", "places", "rows", "used")

    def __init__(self, dtype: torch.dtype) -> None:
        with torch.inference_mode(False), DisableTorchFunctionSubclass():
            self.both = torch.empty(_TOGETHER, 2, dtype=dtype, device="cpu")
            #: Smallest and largest element, of each result that there is room for.
            self.places = [(pair[0], pair[1]) for pair in self.both.unbind()]
        #: Where the extremes of the results that are here stand, by the number of the call; how many places are taken.
        self.rows: dict[int, int] = {}
        self.used = 0

    def take(self, node: Node, result: torch.Tensor) -> bool:
        """Write the extremes of a result. Returns False where that cannot be done.

        It has no element, or no memory in strides, or is a tangent, or lies in a level of a transform.
        """
        row = self.used
        place = self.places[row]
        try:
            elements = result.numel()
            if elements <= _TINY:
                _aminmax(result, out=place)
            elif node.op in _OF_ALL and (known := self._row_of_argument(node, result)) is not None:
                self.rows[node.serial] = known
                return True
            elif elements <= _SMALL:
                _aminmax(result, out=place)
            else:
                _amin(result, (), out=place[0])
                _amax(result, (), out=place[1])
        except RuntimeError:
            return False
        self.rows[node.serial] = row
        self.used = row + 1
        return True

    def _row_of_argument(self, node: Node, result: torch.Tensor) -> int | None:
        """Where the extremes of what ``result`` is a view of stand; None where they are not here, or it has been written into."""
        return self.rows.get(node.parents[0].serial) if result._version == 0 else None

    def empty(self) -> _Unread:
        """What is here; from then on there is room again."""
        with DisableTorchFunctionSubclass(), torch.no_grad():
            taken = list(self.rows), list(self.rows.values()), self.both[: self.used].clone()
        self.rows, self.used = {}, 0
        return taken


class FiniteNotes:
    """What one graph knows of the results of its calls, by serial number."""

    def __init__(self) -> None:
        #: Results whose extremes stand alone so far: the number of the call, and its smallest and largest element.
        self._numbers: list[int] = []
        self._extremes: list[torch.Tensor] = []
        #: On the CPU the usual ones stand here instead.
        self._rooms: dict[torch.dtype, _Room] = {}
        #: What has been put together.
        self._together: list[_Unread] = []
        #: What has been read. Not there: it cannot be told.
        self._known: dict[int, Extremes] = {}
        #: Calls with a result that has no extremes (float8, meta).
        self._unknown: set[int] = set()

    def note(self, node: Node, result: Any) -> None:
        """Take the extremes of the result of a call."""
        if type(result) is _PLAIN and result.is_cpu:
            room = self._rooms.get(result.dtype) or self._new_room(result.dtype)
            if room is not None and room.take(node, result):
                if room.used == _TOGETHER:
                    self._together.append(room.empty())
                return
        self._note_by_itself(node.serial, result)

    def _new_room(self, dtype: torch.dtype) -> _Room | None:
        if dtype not in _USUAL:
            return None
        room = self._rooms[dtype] = _Room(dtype)
        return room

    def _note_by_itself(self, serial: int, result: Any) -> None:
        """``note`` for a result of any kind, on any device."""
        if type(result) is _PLAIN and result.dtype in _USUAL and result.layout is _strided:
            if not self._take(serial, result):
                self._unknown.add(serial)
        else:
            with DisableTorchFunctionSubclass():
                for tensor in tensors_in(result):
                    if not self._look_closely(serial, tensor):
                        self._unknown.add(serial)
        if len(self._numbers) >= _TOGETHER:
            self._put_together()

    def _take(self, serial: int, tensor: torch.Tensor) -> bool:
        """Note the extremes of one result. Returns False where it has none."""
        try:
            self._extremes += tensor.aminmax() if tensor.numel() <= _SMALL else (tensor.amin(), tensor.amax())
        except RuntimeError:  # no element, or no kernel for the dtype
            if tensor.numel():
                return False
            self._known.setdefault(serial, _NONE)
            return True
        self._numbers.append(serial)
        return True

    def _look_closely(self, serial: int, tensor: torch.Tensor) -> bool:
        """``_take`` for a result of any kind."""
        tensor = TensorBase.detach(tensor)  # it may be tracked, or have a history in torch's own autograd
        if tensor.layout is not torch.strided:
            # Of what it is stored in, the values alone can be anything but finite; those for one index may add up to too much.
            parts = parts_of(tensor)
            told = bool(parts) and not (tensor.is_sparse and not tensor.is_coalesced())
            return told and self._look_closely(serial, parts[-1])
        if tensor.dtype.is_complex:
            tensor = torch.view_as_real(tensor.resolve_conj())
        if not tensor.dtype.is_floating_point:
            self._known.setdefault(serial, _NONE)
            return True
        return self._take(serial, tensor)

    def _put_together(self) -> None:
        for room in self._rooms.values():
            if room.rows:
                self._together.append(room.empty())
        numbers, extremes = self._numbers, self._extremes
        self._numbers, self._extremes = [], []
        if not numbers:
            return
        try:
            self._put(numbers, extremes)
        except RuntimeError:  # several devices
            alike: dict[torch.device, tuple[list[int], list[torch.Tensor]]] = {}
            for position, extreme in enumerate(extremes):
                of_device = alike.setdefault(extreme.device, ([], []))
                of_device[0].extend(numbers[position // 2 : position // 2 + 1 - position % 2])
                of_device[1].append(extreme)
            for some in alike.values():
                self._put(*some)

    def _put(self, numbers: list[int], extremes: list[torch.Tensor]) -> None:
        with DisableTorchFunctionSubclass(), torch.no_grad():
            pairs = torch.stack(extremes).view(-1, 2)  # dtypes are promoted, which keeps the values
        if pairs.is_meta:
            self._unknown.update(numbers)
        else:
            self._together.append((numbers, range(len(numbers)), pairs))

    def read(self) -> None:
        """Wait for what has been noted so far."""
        self._put_together()
        for numbers, rows, pairs in self._together:
            extremes = pairs.tolist()
            for serial, row in zip(numbers, rows, strict=True):
                low, high = extremes[row]
                self._known[serial] = joined(self._known.get(serial, _NONE), (low, high))
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

    def drop(self, kept: Set[int]) -> None:
        """Forget all calls but those ``kept``."""
        self._put_together()
        self._together = [unread for unread in self._together if not kept.isdisjoint(unread[0])]
        self._known = {serial: value for serial, value in self._known.items() if serial in kept}
        self._unknown = {serial for serial in self._unknown if serial in kept}

    def clear(self) -> None:
        """Forget all calls."""
        self.drop(frozenset())
