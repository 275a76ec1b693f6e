"""Writes in place put back into a graph of values, where nobody reads again what is written over.

A capture makes values of writes: a state put into a buffer is a new buffer, a sum of gradients new memory, and what is written into an
input a value that is copied there in the end. A compiler undoes that itself; a graph that is replayed would copy the buffer at each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from ops_registry.torch_private import storage_key
from tracer.compiled.simplify import is_view, same_geometry

_aten = torch.ops.aten
#: A value with another in a part of it, and the view that is this part.
_PARTS: dict[Any, Any] = {
    _aten.select_scatter.default: _aten.select.int,
    _aten.slice_scatter.default: _aten.slice.Tensor,
    _aten.diagonal_scatter.default: _aten.diagonal.default,
}
#: Arithmetic, and how it is done in place.
_IN_PLACE: dict[Any, Any] = {
    _aten.add.Tensor: _aten.add_.Tensor,
    _aten.sub.Tensor: _aten.sub_.Tensor,
    _aten.mul.Tensor: _aten.mul_.Tensor,
    _aten.div.Tensor: _aten.div_.Tensor,
    _aten.addcmul.default: _aten.addcmul_.default,
    _aten.addcdiv.default: _aten.addcdiv_.default,
    _aten.lerp.Scalar: _aten.lerp_.Scalar,
    _aten.sqrt.default: _aten.sqrt_.default,
    _aten.neg.default: _aten.neg_.default,
}
#: The same for all tensors of a list, and steps of optimisers that are one call: by the op, how it is done in place.
_LISTS: dict[Any, Any] = {
    getattr(getattr(_aten, name), overload): getattr(getattr(_aten, f"{name}_"), overload)
    for name in (
        *(
            "_foreach_add",
            "_foreach_sub",
            "_foreach_mul",
            "_foreach_div",
            "_foreach_addcmul",
            "_foreach_addcdiv",
            "_foreach_lerp",
        ),
        *("_foreach_sqrt", "_foreach_neg", "_foreach_reciprocal", "_foreach_maximum", "_foreach_pow"),
        *("_fused_sgd", "_fused_adam", "_fused_adamw", "_fused_adagrad"),
    )
    if hasattr(_aten, f"{name}_")
    for overload in getattr(_aten, name).overloads()
    if overload in getattr(_aten, f"{name}_").overloads()
}
_COMMUTATIVE = frozenset({_aten.add.Tensor, _aten.mul.Tensor})
_is_dense: Any = _aten.is_non_overlapping_and_dense.default


class _Memory:
    """Whose memory each value of a graph is, and which call reads that last."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.at = {node: position for position, node in enumerate(graph.nodes)}
        #: Memory that became a part of other memory.
        self._moved: dict[int, int] = {}
        self._last: dict[int, int] = defaultdict(int)
        #: What the graph was given, and may not write over.
        self._given: set[int] = set()
        #: Of what it was given and writes over in the end: the call that does. Before, other values may lie there.
        self._until: dict[int, int] = {}
        self._ends: dict[torch.fx.Node, Any] = {call: call.args[0] for call in graph.nodes if _is_last_write(call)}
        for node, position in self.at.items():
            self._note_view(node)
            for argument in node.all_input_nodes:
                if node in self._ends and argument is self._ends[node]:
                    self._until.update((memory, position) for memory in self.of(argument))
                    continue
                for memory in self.of(argument):
                    self._last[memory] = position
            if node.op in ("placeholder", "get_attr") or node.target is _aten.lift_fresh.default:
                self._given.update(self.of(node))
        self._given -= self._until.keys()

    def _note_view(self, node: torch.fx.Node) -> None:
        """A view lies in the memory of what it looks at. In the capture it may look at another copy of that, made after a write."""
        if node.args and isinstance(node.args[0], torch.fx.Node) and is_view(node):
            (base,) = self.of(node.args[0])
            for memory in self.of(node):
                if memory != base:
                    self._moved[memory] = base

    def of(self, node: torch.fx.Node) -> list[int]:
        """The memory of a value; of each, where a call gives several."""
        return [self._now(storage_key(value)) for value in _tensors(node.meta.get("val"))]

    def _now(self, memory: int) -> int:
        while memory in self._moved:
            memory = self._moved[memory]
        return memory

    def can_be_written(self, node: Any, call: torch.fx.Node) -> bool:
        """Whether ``call`` may write over the value of its argument ``node``, which has the geometry of the call's result."""
        alone = sum(argument is node for argument in call.args) == 1
        return alone and isinstance(call.meta.get("val"), torch.Tensor) and self.can_hold(node, call, call.meta["val"])

    def can_hold(self, node: Any, call: torch.fx.Node, result: torch.Tensor) -> bool:
        """Whether ``result`` of ``call`` may lie where its argument ``node`` does, which nobody but that argument reads in the call."""
        if not isinstance(node, torch.fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        (memory,), to_come = self.of(node), self._last[self._now(storage_key(result))]
        free = memory not in self._given and self._last[memory] == self.at[call]
        in_time = to_come <= self._until.get(memory, to_come)
        alone = all(memory not in self.of(argument) for argument in call.all_input_nodes if argument is not node)
        return free and in_time and alone and _fits(node.meta["val"], result)

    def move(self, result: torch.Tensor, into: torch.fx.Node) -> None:
        """``result`` lies in the memory of ``into`` from now on."""
        old, (new,) = self._now(storage_key(result)), self.of(into)
        self._moved[old] = new
        self._last[new] = self._last[old]

    def is_done(self, call: torch.fx.Node) -> bool:
        """Whether ``call`` copies a value to where it lies."""
        into = self._ends.get(call)
        if into is None or not isinstance(call.args[1], torch.fx.Node):
            return False
        there, value = into.meta["val"], call.args[1].meta["val"]
        same = self.of(into) == self.of(call.args[1]) and same_geometry(there, value)
        return same and there.storage_offset() == 0


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _fits(value: torch.Tensor, result: Any) -> bool:
    return isinstance(result, torch.Tensor) and same_geometry(value, result) and bool(_is_dense(value))


def written_again(graph: torch.fx.Graph) -> torch.fx.Graph:
    """``graph``, changed in place, with arithmetic and writes into parts done in place where that cannot be told from outside."""
    memory = _Memory(graph)
    for call in list(graph.nodes):
        if call.target in _LISTS:
            _write_lists(call, memory, _LISTS[call.target])
            continue
        if memory.is_done(call):
            graph.erase_node(call)
            continue
        target = _written_by(call, memory)
        if target is None:
            continue
        memory.move(call.meta["val"], target)
        if call.target in _PARTS:
            with graph.inserting_before(call):
                part = graph.call_function(_PARTS[call.target], (target, *call.args[2:]), dict(call.kwargs))
                graph.call_function(_aten.copy_.default, (part, call.args[1]))
            call.replace_all_uses_with(target)
            graph.erase_node(call)
        else:
            call.args = (target, *(argument for argument in call.args if argument is not target))
            call.target = _IN_PLACE[call.target]
    return graph


def _is_last_write(call: torch.fx.Node) -> bool:
    """Whether it copies a value over all of an input, as a capture does in the end."""
    return call.target is _aten.copy_.default and call.args[0].op == "placeholder" and not call.users  # type: ignore[union-attr]


def _write_lists(call: torch.fx.Node, memory: _Memory, in_place: Any) -> None:
    """Do ``call`` in place, if all that it gives may lie where the tensors of its lists do."""
    parts = _parts_of(call, memory)
    if parts is None:
        return
    for node, result, into in parts:
        memory.move(result, into)
        if node is not None:
            node.replace_all_uses_with(into)
    for user in sorted(_readers(call), key=memory.at.__getitem__, reverse=True):
        call.graph.erase_node(user)
    call.target = in_place


def _parts_of(call: torch.fx.Node, memory: _Memory) -> list[tuple[Any, torch.Tensor, torch.fx.Node]] | None:
    """What ``call`` gives, part by part: the node that reads it, its value, the argument that it may lie in. None where one may not."""
    value: Any = call.meta["val"]
    nested = bool(value) and not isinstance(value[0], torch.Tensor)
    readers = {_place_of(reader, call): reader for reader in _readers(call)}
    parts: list[tuple[Any, torch.Tensor, torch.fx.Node]] = []
    given = [node for held in call.args if isinstance(held, list | tuple) for node in held]
    for at, held in enumerate(value if nested else [value]):
        for place, result in enumerate(held):
            into: Any = call.args[at][place]  # type: ignore[index]
            reader = readers.get((at, place) if nested else (place,))
            if reader is None and nested and at == 1:  # gradients: they are not written
                continue
            if given.count(into) != 1 or not memory.can_hold(into, call, result):
                return None
            parts.append((reader, result, into))
    return parts


def _readers(call: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that take what ``call`` gives apart."""
    found = []
    for user in call.users:
        found.append(user)
        if not isinstance(user.meta.get("val"), torch.Tensor):
            found += _readers(user)
    return found


def _place_of(reader: torch.fx.Node, call: torch.fx.Node) -> tuple[int, ...]:
    if reader is call:
        return ()
    return *_place_of(reader.args[0], call), reader.args[1]  # type: ignore[arg-type]


def _written_by(call: torch.fx.Node, memory: _Memory) -> Any:
    """The argument that ``call`` may write its result over; None where there is none."""
    if call.target in _COMMUTATIVE and not call.kwargs:
        candidates = call.args
    elif call.target in _PARTS or call.target in _IN_PLACE:
        candidates = call.args[:1]
    else:
        return None
    return next((argument for argument in candidates if memory.can_be_written(argument, call)), None)
