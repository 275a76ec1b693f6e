"""Writes in place put back into a graph of values, where nobody reads again what is written over.

A capture makes values of writes: a state put into a buffer is a new buffer, and a sum of gradients new memory. A compiler undoes that
itself; a graph that is replayed would copy the buffer at each step.
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
        for node, position in self.at.items():
            self._note_view(node)
            for argument in node.all_input_nodes:
                for memory in self.of(argument):
                    self._last[memory] = position
            if node.op in ("placeholder", "get_attr") or node.target is _aten.lift_fresh.default:
                self._given.update(self.of(node))

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
        if not isinstance(node, torch.fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        (memory,) = self.of(node)
        others = [argument for argument in call.all_input_nodes if argument is not node]
        free = memory not in self._given and self._last[memory] == self.at[call]
        alone = sum(argument is node for argument in call.args) == 1 and all(memory not in self.of(o) for o in others)
        return free and alone and _fits(node.meta["val"], call.meta.get("val"))

    def move(self, result: torch.fx.Node, into: torch.fx.Node) -> None:
        """``result`` lies in the memory of ``into`` from now on."""
        (old,), (new,) = self.of(result), self.of(into)
        self._moved[old] = new
        self._last[new] = self._last[old]


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
        target = _written_by(call, memory)
        if target is None:
            continue
        memory.move(call, target)
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


def _written_by(call: torch.fx.Node, memory: _Memory) -> Any:
    """The argument that ``call`` may write its result over; None where there is none."""
    if call.target in _COMMUTATIVE and not call.kwargs:
        candidates = call.args
    elif call.target in _PARTS or call.target in _IN_PLACE:
        candidates = call.args[:1]
    else:
        return None
    return next((argument for argument in candidates if memory.can_be_written(argument, call)), None)
