"""What ``tracer.checkpoint`` would give back: for each module what its calls keep, less what a checkpoint of it would save."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, KeysView, Sequence

import torch

from ops_registry.rule import FROM_RESULT
from ops_registry.sites import named_modules
from tracer.node import CallNode, Leaf, Node, Output, flat
from tracer.reports.kept import VALUE, Memory, kept_of

#: Modules that only hold others: nobody calls them.
_HOLDERS = (torch.nn.ModuleList, torch.nn.ModuleDict)


class Checkpoints:
    """The modules of a graph, and what each keeps.

    A stretch is a run of calls one after the other inside one module, its submodules included: what one checkpoint would go around.
    Calls of a module straight after one another cannot be told apart, and make one stretch.
    """

    def __init__(self, nodes: Sequence[Node], anyway: Collection[int]) -> None:
        self._nodes = nodes
        self._anyway = anyway
        self._index = {node: i for i, node in enumerate(nodes)}
        self._kept = [[m for m in kept_of(node) if m.name != VALUE] for node in nodes]
        self._roots = self._find_roots()
        #: The first and the last call that keeps a piece of memory.
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        #: The memory that results lie in, as far as some call keeps it.
        self._memory_of: dict[Node, int] = {}
        for i, kept in enumerate(self._kept):
            for memory in kept:
                self._first.setdefault(memory.storage, i)
                self._last[memory.storage] = i
                self._note_source(nodes[i], memory)
        self._members = self._find_members()

    @property
    def modules(self) -> KeysView[str]:
        """The paths of all modules that calls were made in, those that hold them included."""
        return self._members.keys()

    def within(self, module: str) -> int:
        """The bytes that calls in the module and its submodules keep."""
        return sum({m.storage: m.bytes for i in self._members[module] for m in self._kept[i]}.values())

    def given_back(self, module: str) -> int:
        """The bytes that are kept no more where each call of the module is checkpointed; negative where it would keep more."""
        return sum(self._given_back(first, last) for first, last in _runs(self._members[module]))

    def _given_back(self, first: int, last: int) -> int:
        inputs = self._inputs(first, last)
        saved = {self._memory_of[node] for node in inputs if node in self._memory_of}
        given: dict[int, int] = {}
        for i in range(first, last + 1):
            for memory in self._kept[i]:
                if self._is_argument(i, memory):
                    saved.add(memory.storage)  # where an argument without gradient was made is not known
                if self._first[memory.storage] >= first and self._last[memory.storage] <= last:
                    given[memory.storage] = memory.bytes
        more = sum(_size(node) for node in inputs if node not in self._memory_of)
        return sum(size for s, size in given.items() if s not in saved and s not in self._anyway) - more

    def _inputs(self, first: int, last: int) -> set[Node]:
        """The results of other calls that those of a stretch use."""
        used = {
            self._roots.get(parent, parent) for i in range(first, last + 1) for parent in flat(self._nodes[i].parents)
        }
        return {node for node in used if not isinstance(node, Leaf) and not first <= self._at(node) <= last}

    def _at(self, node: Node) -> int:
        call = node.parents[0] if isinstance(node, Output) and node.parents else node
        return self._index.get(call, -1)

    def _is_argument(self, i: int, memory: Memory) -> bool:
        node = self._nodes[i]
        named = node.plan.rule.signature.names if isinstance(node, CallNode) else (memory.name,)
        return memory.source is None and memory.name in named

    def _note_source(self, node: Node, memory: Memory) -> None:
        if memory.source is None or not isinstance(node, CallNode):
            return
        if memory.source == FROM_RESULT:
            self._memory_of[self._roots.get(node, node)] = memory.storage
        elif memory.source >= 0 and isinstance(parent := node.parents[memory.source], Node):
            self._memory_of[self._roots.get(parent, parent)] = memory.storage

    def _find_roots(self) -> dict[Node, Node]:
        """For each result the one whose memory it lies in, as far as the ops tell: views are looked through."""
        roots: dict[Node, Node] = {}
        for node in self._nodes:
            for parent in flat(node.parents):
                if isinstance(parent, Output) and parent.parents and parent not in roots:
                    roots[parent] = _root(parent.parents[0], parent, roots)
            roots[node] = _root(node, node, roots)
        return roots

    def _find_members(self) -> dict[str, list[int]]:
        """The calls inside each module, by their positions."""
        holders = {path for paths, module in named_modules() if isinstance(module, _HOLDERS) for path in paths}
        members: dict[str, list[int]] = defaultdict(list)
        for i, node in enumerate(self._nodes):
            path = "" if node.site is None else node.site.module
            while path:
                if path not in holders:
                    members[path].append(i)
                path = path.rpartition(".")[0]
        return members


def _root(call: Node, result: Node, roots: dict[Node, Node]) -> Node:
    """What a result may lie in the memory of: the root of the call's one argument with a gradient, else itself."""
    arguments = flat(call.parents)
    if len(arguments) != 1 or not isinstance(call, CallNode) or not call.plan.rule.may_alias:
        return result
    return roots.get(arguments[0], arguments[0]) if arguments[0].dtype is result.dtype else result


def _size(node: Node) -> int:
    return 0 if node.shape is None or node.dtype is None else math.prod(node.shape) * node.dtype.itemsize


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of positions without a gap."""
    runs: list[tuple[int, int]] = []
    for i in positions:
        if runs and i == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], i
        else:
            runs.append((i, i))
    return runs
