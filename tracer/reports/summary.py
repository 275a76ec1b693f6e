"""The calls of a graph by module, down to a depth, or by op: the rows of ``tracer.explain``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracer.reports.blocks import Part, Tree
from tracer.reports.recorded import Recorded
from tracer.reports.report import Row
from tracer.reports.words import told_bytes, told_ops

#: The calls that a module makes itself, beside those of the modules in it; and those of no module inside the model.
OWN, TOP = "(own calls)", "(top level)"


@dataclass(frozen=True)
class SummaryRow(Row):
    """A module with all that it runs, or one op. The rows one level down add up to it, ``(own calls)`` among them."""

    #: The last part of the path, ``h.0 .. h.11: 12 times`` for several; the op.
    name: str
    calls: int
    #: How often each op is called.
    ops: dict[str, int]
    #: Shape of the result of the last call; None where that has several, or is gone.
    shape: tuple[int, ...] | None
    #: Elements of the parameters and other leaves that get a gradient here and from no call before.
    parameters: int
    #: Bytes of memory kept for backward here and by no call before.
    kept_bytes: int
    #: Path of the module, of the first where several equal ones are one row; ``""`` for an op.
    module: str = field(repr=False)
    #: How deep it stands, from 1.
    level: int = field(repr=False)
    #: How many equal modules the row stands for. All other figures are of all of them together.
    times: int = field(repr=False)

    def cells(self) -> list[str]:
        return [
            "  " * (self.level - 1) + self.name,
            f"{self.calls:,}" if self.times == 1 else f"{self.times} x {self.calls // self.times:,}",
            told_ops(self.ops, self.times) if self.module or self.name not in self.ops else "",
            "" if self.shape is None else str(self.shape),
            f"{self.parameters:,}",
            told_bytes(self.kept_bytes),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "ops": self.ops, "module": self.module, "level": self.level, "times": self.times}


@dataclass
class Sum:
    """What some calls come to."""

    ops: Counter[str] = field(default_factory=Counter)
    shape: tuple[int, ...] | None = None
    parameters: int = 0
    kept_bytes: int = 0

    def row(self, module: str, name: str, level: int, times: int) -> SummaryRow:
        """The row that says so."""
        ops = dict(self.ops.most_common())
        calls = sum(ops.values())
        return SummaryRow(name, calls, ops, self.shape, self.parameters, self.kept_bytes, module, level, times)


def total(recorded: Recorded) -> Sum:
    """What all calls come to."""
    found = Sum()
    for position, elements in enumerate(_new_elements(recorded)):
        _add(found, recorded, position, elements)
    return found


def rows_by_op(recorded: Recorded) -> list[SummaryRow]:
    """One row an op, those that keep most first."""
    sums: dict[str, Sum] = {}
    for position, elements in enumerate(_new_elements(recorded)):
        _add(sums.setdefault(recorded.calls[position].op, Sum()), recorded, position, elements)
    rows = [found.row("", op, 1, 1) for op, found in sums.items()]
    return sorted(rows, key=lambda row: (-row.kept_bytes, -row.calls))


def rows_by_module(recorded: Recorded, tree: Tree, depth: int) -> list[SummaryRow]:
    """One row a module, each after the one that holds it, equal blocks in one."""
    inside: dict[Part, Sum] = {}
    own: dict[Part, Sum] = {}
    for position, elements in enumerate(_new_elements(recorded)):
        _add(own.setdefault(tree.parts[position], Sum()), recorded, position, elements)
        holder: Part | None = tree.parts[position]
        while holder is not None:
            _add(inside.setdefault(holder, Sum()), recorded, position, elements)
            holder = holder.parent
    rows = []
    waiting: list[SummaryRow | Part] = [tree.root] if inside else []
    while waiting:
        part = waiting.pop()
        if isinstance(part, SummaryRow):
            rows.append(part)
            continue
        if part.level:
            rows.append(inside[part].row(part.path, part.title, part.level, part.times))
        if part.level >= depth:
            continue
        children = [child for child in part.children.values() if child.shown_as is child]
        if part in own and (children or not part.level):  # below the modules inside of it
            waiting.append(own[part].row(part.path, OWN if part.level else TOP, part.level + 1, part.times))
        waiting.extend(reversed(children))
    return rows


def _add(found: Sum, recorded: Recorded, position: int, elements: int) -> None:
    call = recorded.calls[position]
    found.ops[call.op] += 1
    found.shape = call.shape
    found.parameters += elements
    found.kept_bytes += call.kept_bytes


def _new_elements(recorded: Recorded) -> Iterator[int]:
    """For each call the elements of the leaves that it uses and that no call before it does."""
    seen: set[int] = set()
    for call in recorded.calls:
        new = [leaf for leaf in dict.fromkeys(call.leaves) if leaf not in seen]
        seen.update(new)
        yield sum(recorded.leaves[leaf].elements for leaf in new)
