"""Calls of a step that differ in sizes of arguments alone: which graph serves them, which sizes of the next graph are symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer.compiled.graphs import StepGraph
from tracer.compiled.symbolic import Dims

#: So many graphs have fixed sizes; after them those sizes are symbolic that varied.
FIXED = 8


def key_without_sizes(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is left of the key of a call when shapes and strides of its arguments do not count, only how many dimensions each has."""
    state, (spec, *parts), thread = key
    rest = [
        (part[0], len(part[1]), *part[3:]) if isinstance(part[1], torch.Size) and len(part) > 2 else part
        for part in parts
    ]
    return state, spec, tuple(rest), thread


class Family:
    """The graphs for calls that differ in sizes and strides of arguments alone."""

    def __init__(self, dynamic: bool) -> None:
        self._dynamic = dynamic
        #: The shapes of the arguments for which there are graphs of fixed sizes, each once.
        self._shapes: dict[tuple[torch.Size, ...], None] = {}
        #: Graphs of symbolic sizes, and what each was made for of that which few steps look at.
        self._graphs: list[tuple[StepGraph, tuple[Any, ...]]] = []
        #: Why there are none of symbolic sizes.
        self.fixed_since = ""

    def find(self, tensors: list[torch.Tensor]) -> StepGraph | None:
        """A graph of symbolic sizes for these tensors."""
        for graph, looks in self._graphs:
            if graph.conditions is not None and graph.conditions.hold(tensors) and graph.looks(tensors) == looks:
                return graph
        return None

    def dims(self, tensors: Sequence[torch.Tensor], first: int) -> Dims:
        """Which sizes of ``tensors`` are symbols in the next graph; ``first``: where arguments begin. Empty where all are fixed."""
        given = dict(enumerate(tensors[first:], first))
        if self._dynamic:
            dims = {position: list(range(tensor.dim())) for position, tensor in given.items()}
        elif len(self._shapes) < FIXED or self.fixed_since:
            return {}
        else:
            dims = {
                position: [
                    d for d, size in enumerate(t.shape) if any(s[position - first][d] != size for s in self._shapes)
                ]
                for position, t in given.items()
            }
        symbolic = any(tensors[position].shape[dim] > 1 for position in dims for dim in dims[position])
        return dims if symbolic else {}

    def add(self, graph: StepGraph, tensors: list[torch.Tensor], first: int) -> None:
        """Note a graph that was made for ``tensors``."""
        if graph.conditions is None:
            self._shapes[tuple([tensor.shape for tensor in tensors[first:]])] = None
        else:
            self._graphs.append((graph, graph.looks(tensors)))

    def broken(self, tensors: Sequence[torch.Tensor]) -> list[str]:
        """What ``tensors`` lack for the graph of symbolic sizes that comes nearest, in words."""
        broken = [graph.conditions.broken(tensors) for graph, _ in self._graphs if graph.conditions is not None]
        return [f"not so: {text}" for text in min(broken, key=len, default=[])]
