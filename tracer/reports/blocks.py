"""The calls of a graph by module, as a tree, with repeated blocks folded: numbered siblings whose calls form the same graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import eq
from typing import Any

import rustworkx as rx

from tracer.reports.recorded import Recorded

#: How many states a search for an isomorphism may visit: it is needed where two blocks ran the same calls in another order.
MOST_STATES = 100_000


class Part:
    """One module, with all that it runs. The root stands for the whole graph."""

    def __init__(self, name: str, parent: Part | None) -> None:
        self.name = name
        self.parent = parent
        self.path: str = name if parent is None or not parent.path else f"{parent.path}.{name}"
        self.level: int = 0 if parent is None else parent.level + 1
        self.children: dict[str, Part] = {}
        #: Positions of the calls that it makes itself, not in a module inside it.
        self.own: list[int] = []
        #: The part that stands for this one: itself, or its counterpart in the first of several equal blocks.
        self.shown_as: Part = self
        #: The names of all blocks that this one stands for, with its own.
        self.names: list[str] = [name]

    @property
    def list_name(self) -> str:
        """``h`` of ``h.3``; empty for what is in no list."""
        stem, dot, number = self.name.rpartition(".")
        return stem if dot and number.isdigit() else ""

    def at_level(self, level: int) -> Part:
        """The part so many levels below the root that this one is in."""
        part = self
        while part.level > level and part.parent is not None:
            part = part.parent
        return part

    @property
    def times(self) -> int:
        """How many modules of the model this part stands for."""
        found = 1
        part: Part | None = self
        while part is not None:
            found *= len(part.names)
            part = part.parent
        return found

    @property
    def title(self) -> str:
        """Its name, or the names of the blocks that it stands for."""
        return _ranges(self.names)

    def __iter__(self) -> Iterator[Part]:
        """Itself and all parts below, each after the one that holds it, in the order of their first calls."""
        waiting = [self]
        while waiting:
            part = waiting.pop()
            yield part
            waiting.extend(reversed(part.children.values()))


@dataclass(frozen=True)
class Tree:
    """The modules of a graph, with the repeated ones folded."""

    root: Part
    #: For each call the position of the one that stands for it: itself, or its counterpart in the first of several equal blocks.
    shown_as: list[int]
    #: For each call the part that stands for the module it was made in.
    parts: list[Part]
    #: By the path of each module that made calls.
    _by_path: dict[str, Part]

    def part_of(self, path: str) -> Part:
        """The part that stands for a module; the root for one that made no calls."""
        part = self._by_path.get(path)
        return self.root if part is None else part.shown_as


def levels(path: str) -> list[str]:
    """``transformer``, ``h.3``, ``mlp`` of ``transformer.h.3.mlp``: a list of modules and a number in it are one level."""
    found: list[str] = []
    for name in path.split(".") if path else ():
        if name.isdigit() and found and not (found[-1].isdigit() or "." in found[-1]):
            found[-1] += f".{name}"
        else:
            found.append(name)
    return found


#: ``h.11``, ``layer4``, ``3``.
_NUMBERED = re.compile(r"(.*?)(\d+)")


def fold(recorded: Recorded, *, smallest: int = 2) -> Tree:
    """The modules that made the calls. Blocks of at least ``smallest`` calls are folded."""
    root, homes, by_path = _tree(recorded)
    shown_as = list(range(len(recorded.calls)))
    for part in root:
        if part.parent is not None and part.shown_as is part:
            part.shown_as = part.parent.shown_as.children[part.name].shown_as
        if part.shown_as is part:
            _fold_children(part, recorded, shown_as, smallest)
    for position, other in enumerate(shown_as):
        # The block that stands for it is folded inside: once a level of modules at most.
        while shown_as[other] != other:
            other = shown_as[other]
        shown_as[position] = other
    return Tree(root, shown_as, [home.shown_as for home in homes], by_path)


def _tree(recorded: Recorded) -> tuple[Part, list[Part], dict[str, Part]]:
    root = Part("", None)
    known: dict[str, Part] = {"": root}
    homes = []
    for position, call in enumerate(recorded.calls):
        home = known.get(call.module)
        if home is None:
            home = root
            for name in levels(call.module):
                below = home.children.get(name)
                if below is None:
                    below = home.children[name] = Part(name, home)
                home = below
            known[call.module] = home
        home.own.append(position)
        homes.append(home)
    return root, homes, known


def _fold_children(part: Part, recorded: Recorded, shown_as: list[int], smallest: int) -> None:
    """Let the first of equal blocks among the children of ``part`` stand for the others."""
    by_calls: dict[Any, Block] = {}
    by_labels: dict[Any, Block] = {}
    for child in part.children.values():
        match = _NUMBERED.fullmatch(child.name)
        if match is None:
            continue
        block = Block(child, recorded)
        if len(block.positions) < smallest:
            continue
        stem = match[1]
        first = by_calls.get((stem, block.calls))
        counterparts: Sequence[int] | None = range(len(block.positions))
        if first is None:
            first = by_labels.get((stem, block.labels))
            counterparts = None if first is None else first.match(block)
        if first is None or counterparts is None:
            by_calls[stem, block.calls] = block
            by_labels.setdefault((stem, block.labels), block)
            continue
        child.shown_as = first.part
        first.part.names.append(child.name)
        for position, counterpart in zip(block.positions, counterparts, strict=True):
            shown_as[position] = first.positions[counterpart]


class Block:
    """The calls of one module as a graph of their own, to be compared with that of another."""

    def __init__(self, part: Part, recorded: Recorded) -> None:
        self.part = part
        self.positions = sorted(position for below in part for position in below.own)
        inside = {position: i for i, position in enumerate(self.positions)}
        found = []
        for i, position in enumerate(self.positions):
            call = recorded.calls[position]
            parameters = [leaf.shape for leaf in map(recorded.leaves.__getitem__, call.leaves) if leaf.parameter]
            # What must be equal in two calls: where in the block, what, the shapes of its result and of its parameters.
            label = call.module[len(part.path) :], call.op, call.shape, tuple(parameters)
            found.append((label, tuple([i - inside[p] for p in call.parents if p in inside])))
        #: Each call in its order, with its label and how far before it those of its inputs were made that come from inside.
        self.calls = tuple(found)

    @cached_property
    def labels(self) -> frozenset[Any]:
        """Each label, and how often it stands in the block."""
        return frozenset(Counter(label for label, _ in self.calls).items())

    @cached_property
    def digraph(self) -> rx.PyDiGraph[Any, int]:
        """Its calls, and edges that carry the position of an input."""
        graph: rx.PyDiGraph[Any, int] = rx.PyDiGraph()
        graph.add_nodes_from([label for label, _ in self.calls])
        graph.add_edges_from(
            [(i - back, i, k) for i, (_, inputs) in enumerate(self.calls) for k, back in enumerate(inputs)]
        )
        return graph

    def match(self, other: Block) -> list[int] | None:
        """For each call of ``other`` its counterpart in this block; None where the two are not the same graph, or none was found."""
        found = rx.vf2_mapping(other.digraph, self.digraph, eq, eq, call_limit=MOST_STATES)
        mapping = next(iter(found), None)
        return None if mapping is None else [mapping[i] for i in range(len(other.calls))]


def _ranges(names: list[str]) -> str:
    """``h.0 .. h.11: 12 times``; what is not in a row stands one by one."""
    if len(names) == 1:
        return names[0]
    numbers = [int(match[2]) for match in map(_NUMBERED.fullmatch, names) if match is not None]
    runs: list[list[int]] = []
    for i, number in enumerate(numbers):
        if runs and number == numbers[runs[-1][-1]] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    told = [names[run[0]] if len(run) == 1 else f"{names[run[0]]} .. {names[run[-1]]}" for run in runs]
    if len(told) > 4:
        told = [*told[:3], "..", told[-1]]
    return f"{', '.join(told)}: {len(names)} times"
