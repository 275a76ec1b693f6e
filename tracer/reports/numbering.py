"""Which calls of a graph compute the same: equal numbers for the same op on the same values (value numbering).

Two arguments are the same where they lie in the same memory, at the same place and version, where they come from calls with the same number
and were not written to since, or where they are constants that hold the same numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from ops_registry.rule import FROM_RESULT
from ops_registry.torch_private import storage_key
from tracer.node import CallNode, Node, Output, parts_of
from tracer.reports.constants import Constants

#: Ops of our own and conversions, which torch's table of ops does not have. None of them is random.
_OURS = frozenset(
    (
        "H",
        "T",
        "__setitem__",
        "bfloat16",
        "cdouble",
        "cfloat",
        "cleared",
        "cofactors",
        "differences",
        "double",
        "einsum_one",
        "einsum_two",
        "float",
        "gru_layer",
        "half",
        "least_squares",
        "lstm_layer",
        "moved_cofactors",
        "placed",
        "rnn_layer",
        "type",
        "write_region",
    )
)
#: Arguments that take the chance out of a random op when they are zero or False.
_CHANCES = ("p", "dropout_p", "dropout", "train", "training")
#: Values that are compared as they are.
_PLAIN = (str, bool, int, complex, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _UnknownError(Exception):
    """Which value an argument has cannot be told."""


class Numbering:
    """The calls by number: ``classes[number]`` are those that compute the same, oldest first."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.number_of: dict[Node, int] = {}
        self.classes: dict[int, list[Node]] = defaultdict(list)
        #: How many calls have arguments that nobody knows, or such that torch writes into without counting; how many are of random ops,
        #: and how many of no op that torch knows.
        self.untold = self.uncounted = self.random = self.foreign = 0
        #: Where the results of a call lay when it was made: storage and version, by position.
        self._made: dict[tuple[Node, int], tuple[int, int]] = {}
        self._constants = Constants()
        numbers: dict[Any, int] = {}
        for node in nodes:
            key = self._key(node)
            number = numbers.setdefault(node if key is None else key, len(numbers))
            self.number_of[node] = number
            self.classes[number].append(node)
            self._made.update(_results(node))

    def _key(self, node: Node) -> Any:
        """What two calls have in common that compute the same; None for one that is like no other."""
        if not isinstance(node, CallNode) or (chance := _chance(node.op)) is None:
            self.foreign += 1
            return None
        given = _arguments(node)
        if chance and not (given and any(name in given and not given[name] for name in _CHANCES)):
            self.random += 1
            return None
        if given is None:
            self.untold += 1
            return None
        if given.get("running_mean") is not None:
            self.uncounted += 1
            return None
        parents = dict(zip(node.plan.names, node.parents, strict=False))
        versions = {id(t): v for t, v in (node.saved_versions if node.values is None else node.values.versions)}
        try:
            arguments = [self._identity(v, parents.get(n), versions, node) for n, v in given.items()]
        except _UnknownError:
            self.untold += 1
            return None
        return node.op, node.shape, node.dtype, *arguments

    def _identity(self, value: Any, parent: Any, versions: Mapping[int, int], node: CallNode) -> Any:
        if isinstance(value, torch.Tensor):
            version = versions.get(id(value), -1)
            if version < 0:  # of inference mode, where torch counts no writes
                raise _UnknownError
            made = self._made_by(parent, value, version, node) if isinstance(parent, Node) else None
            place = made or tuple(_place(part, version) for part in parts_of(value))
            constant = parent is None and value._version == version
            return self._constants.place_of(place, value) if constant else place
        if isinstance(value, list | tuple):
            within = parent if isinstance(parent, tuple) else (None,) * len(value)
            return type(value), *(self._identity(v, p, versions, node) for v, p in zip(value, within, strict=True))
        if isinstance(value, slice):
            return slice, *(self._identity(v, None, versions, node) for v in (value.start, value.stop, value.step))
        if isinstance(value, float):
            return float, value.hex()  # tells 0.0 from -0.0
        if isinstance(value, _PLAIN):
            return type(value), value
        raise _UnknownError

    def _made_by(self, parent: Node, value: torch.Tensor, version: int, node: CallNode) -> Any:
        """Number and position of the result that an argument is; None where it may have been written to since."""
        call, index = place_of(parent)
        made = self._made.get((call, index))
        if made is None or call not in self.number_of:
            return None
        if made == (storage_key(value), version) or made == self._before_write(node):
            return "result", self.number_of[call], index
        return None

    def _before_write(self, node: CallNode) -> tuple[int, int] | None:
        """Where the target of an in-place call lay, of which ``values`` has a copy: one write ago, so nobody else has written."""
        result = None if node.values is None else node.values.result
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
            return None
        version = next(v for t, v in node.values.versions if t is result)
        return storage_key(result), version - 1


def place_of(node: Node) -> tuple[Node, int]:
    """The call that a result is of, and the result's position."""
    return (node.parents[0], node.index) if isinstance(node, Output) and node.parents else (node, 0)


def _arguments(node: CallNode) -> dict[str, Any] | None:
    """All arguments of a call, by name; None where it is not known what they were."""
    names = node.plan.rule.signature.names
    if node.values is not None:
        return dict(zip(names, node.values.bound, strict=True))
    if node.saved is None or node.packed or not set(names) <= set(node.saved_names):
        return None
    saved = dict(zip(node.saved_names, node.saved, strict=True))
    return {name: saved[name] for name in names}


def _results(node: Node) -> Iterator[tuple[tuple[Node, int], tuple[int, int]]]:
    """Memory and version of the results of a call, as far as they are kept."""
    if node.values is not None:
        result, versions = node.values.result, node.values.versions
    elif isinstance(node, CallNode) and node.saved and FROM_RESULT in node.plan.sources:
        result, versions = node.saved[node.plan.sources.index(FROM_RESULT)], node.saved_versions
    else:
        return
    known = {id(t): v for t, v in versions}
    for index, tensor in enumerate(result if isinstance(result, tuple | list) else (result,)):
        if id(tensor) in known and tensor.layout is torch.strided:
            yield (node, index), (storage_key(tensor), known[id(tensor)])


def _place(tensor: torch.Tensor, version: int) -> tuple[Any, ...]:
    """What two tensors that are the same have in common."""
    where = storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
    return *where, tensor.dtype, version, tensor.is_conj(), tensor.is_neg()


@cache
def _chance(op: str) -> bool | None:
    """Whether an op may be random; None for one that torch's table of ops does not have."""
    if op in _OURS:
        return False
    packet = getattr(torch.ops.aten, op.partition(".")[0], None)
    if packet is None:
        return None
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def result_memory(nodes: Sequence[Node]) -> dict[tuple[Node, int], int]:
    """The memory of each result, by its call and position, as far as some call keeps it."""
    found: dict[tuple[Node, int], int] = {}
    for node in nodes:
        for place, (storage, _) in _results(node):
            found[place] = storage
        if not isinstance(node, CallNode) or node.saved is None:
            continue
        for value, source in zip(node.saved, node.plan.sources, strict=True):
            if source is None or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                continue
            if source < FROM_RESULT:
                found[node, FROM_RESULT - 1 - source] = storage_key(value)
            elif source >= 0 and isinstance(parent := node.parents[source], Node):
                found[place_of(parent)] = storage_key(value)
    return found
