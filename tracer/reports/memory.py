"""``memory``: what is kept for backward, by op, line or module: how much, which rule asks for it, what a checkpoint would give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ops_registry.sites import short_line
from tracer.graph import Graph
from tracer.node import Node
from tracer.reports.checkpointing import Checkpoints
from tracer.reports.grouping import check_by, check_sites, group_of, whole
from tracer.reports.kept import Memory, RulePlaces, kept_of, there_anyway
from tracer.reports.report import Report, Row, as_plain, as_text, calls
from tracer.reports.subjects import check_graph
from tracer.reports.words import told_bytes

#: A checkpoint that gives back less than this part of what the best one does is not advised.
WORTH = 0.1


@dataclass(frozen=True)
class Kept:
    """What the rule of one op asks for."""

    op: str
    #: The rule's name for it: an argument of the op, ``result``, or a by-product of the forward.
    name: str
    #: Where the formula is written that asks for it.
    rule: str
    bytes: int
    #: Bytes that a call before keeps too, where they are counted.
    shared: int

    def __str__(self) -> str:
        what = f"its {self.name}" if self.name == "result" else self.name
        amounts = [whole(self.bytes)] if self.bytes or not self.shared else []
        amounts += [f"{whole(self.shared)} shared"] if self.shared else []
        return f"{self.op} keeps {what}: {' and '.join(amounts)}" + (f" ({self.rule})" if self.rule else "")


@dataclass(frozen=True)
class MemoryRow(Row):
    """What the calls of one op, line or module keep for backward."""

    #: The op, the line with its full path, or the module.
    what: str
    #: How many calls there keep something.
    calls: int
    bytes: int
    size: str
    #: Of these bytes, those of leaves, and of parameters and buffers of modules: they would be there without a backward pass too.
    parameters: int
    #: Bytes that a call before keeps too; they are counted there.
    shared: int
    #: Of a module, with its submodules: the bytes that they keep, and those that a checkpoint of each of its calls would give back.
    within: int | None
    checkpoint: int | None
    #: What is kept for which rule, largest first.
    keeps: list[Kept]

    def cells(self) -> list[str]:
        # Nothing in place of 0, so that a column of them is left out.
        amounts = [
            "" if amount in (0, None) else whole(amount or 0) for amount in (self.parameters, self.shared, self.within)
        ]
        checkpoint = "" if self.checkpoint is None else whole(self.checkpoint)
        keeps = as_text(self.keeps)
        return [short_line(self.what), whole(self.calls), whole(self.bytes), self.size, *amounts, checkpoint, keeps]

    def __str__(self) -> str:
        shown = [(name, getattr(self, name)) for name in self.columns()]
        # On its own a row has plain numbers, to be copied; in a table they have separators.
        return "  ".join(f"{name} {as_text(value)}" for name, value in shown if value is not None)

    def to_dict(self) -> dict[str, Any]:
        kept = [{name: as_plain(value) for name, value in vars(k).items()} for k in self.keeps]
        return {**super().to_dict(), "keeps": kept}


class MemoryReport(Report[MemoryRow]):
    """What ``memory`` returns."""

    title = "Memory"

    def __init__(self, verdict: str, rows: Sequence[MemoryRow], advice: Sequence[str], total: int) -> None:
        super().__init__(verdict, rows, advice)
        #: The sum of ``bytes`` of all rows: ``graph.kept_bytes()``.
        self.bytes = total


def memory(graph: Graph, by: str = "op") -> MemoryReport:
    """What ``graph`` keeps for backward, in bytes, largest first: one row for an ``"op"``, a ``"line"`` of yours, or a ``"module"``.

    ``bytes`` of all rows add up to ``graph.kept_bytes()``: whole storages, as long as they are kept, parameters included. A storage that
    several calls keep is counted for the first of them, and stands as ``shared`` with the others. ``keeps`` names what each rule asks for
    and where it is written. ``by="module"`` also shows modules whose submodules alone keep something; ``within`` and ``checkpoint`` count
    those in, so they do not add up. ``checkpoint`` is what ``tracer.checkpoint`` around each call of the module would give back while
    others run: the bytes kept inside less the inputs, which a checkpoint saves. It may be more, since constants that calls inside are given
    count as inputs: where they were made is not known. It is less where a module's calls come straight after one another, which count as
    one, and where an argument of the module holds more than is used (a cache).

    Lines and modules need ``tracer.Graph(sites=True)``; a call is counted for the innermost module that ran. What saved-tensor hooks have
    packed (a checkpoint, ``save_on_cpu``) is theirs and not counted.

    Raises ``NotNotedError`` where lines or modules were not noted, ``GradientArgumentError`` for another ``by``.
    """
    check_graph("memory", graph)
    check_by("memory", by, ("op", "line", "module"))
    nodes = graph.nodes()
    check_sites("memory", by, nodes)
    anyway = there_anyway(nodes)
    groups, total = _gather(nodes, by, anyway)
    checkpoints = Checkpoints(nodes, anyway) if by == "module" else None
    rows = [group.row(checkpoints) for group in groups.values()]
    if checkpoints is not None:
        rows += [_Group(path).row(checkpoints) for path in checkpoints.modules if path not in groups]
        rows = [row for row in rows if row.calls or row.within]
    rows.sort(key=lambda row: (-row.bytes, -(row.within or 0), -row.shared, row.what))
    return MemoryReport(_verdict(rows, nodes, total), rows, _advice(rows, nodes), total)


def _gather(nodes: Sequence[Node], by: str, anyway: set[int]) -> tuple[dict[str, _Group], int]:
    """The groups by name, and the bytes of all."""
    groups: dict[str, _Group] = {}
    places = RulePlaces()
    seen: set[int] = set()
    for node in nodes:
        kept = kept_of(node)
        if not kept:
            continue
        name = group_of(node, by)
        group = groups.get(name) or groups.setdefault(name, _Group(name))
        group.calls += 1
        for memory in kept:
            entry = group.entry(node.op, memory.name, places.of(node, memory.name))
            if memory.storage not in seen:
                seen.add(memory.storage)
                group.tally.own(memory)
                entry.own(memory)
                group.parameters += memory.bytes if memory.storage in anyway else 0
            else:
                group.tally.share(memory)
                entry.share(memory)
    return groups, sum(group.tally.bytes for group in groups.values())


@dataclass
class _Tally:
    """Bytes that are counted here, and those counted elsewhere; each storage once."""

    bytes: int = 0
    shared: int = 0
    _storages: set[int] = field(default_factory=set)

    def own(self, memory: Memory) -> None:
        self._storages.add(memory.storage)
        self.bytes += memory.bytes

    def share(self, memory: Memory) -> None:
        if memory.storage not in self._storages:
            self._storages.add(memory.storage)
            self.shared += memory.bytes


class _Group:
    """The calls of one row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.parameters = 0
        self.tally = _Tally()
        self.entries: dict[tuple[str, str, str], _Tally] = {}

    def entry(self, op: str, name: str, rule: str) -> _Tally:
        """What is kept for one rule under one name."""
        return self.entries.get((op, name, rule)) or self.entries.setdefault((op, name, rule), _Tally())

    def row(self, checkpoints: Checkpoints | None) -> MemoryRow:
        kept = [Kept(*key, entry.bytes, entry.shared) for key, entry in self.entries.items()]
        kept = [k for k in kept if k.bytes or k.shared]  # not what is empty
        kept.sort(key=lambda k: (-k.bytes, -k.shared))
        within = checkpoint = None
        if checkpoints is not None and self.name in checkpoints.modules:
            within, checkpoint = checkpoints.within(self.name), checkpoints.given_back(self.name)
        return MemoryRow(
            self.name,
            self.calls,
            self.tally.bytes,
            told_bytes(self.tally.bytes),
            self.parameters,
            self.tally.shared,
            within,
            checkpoint,
            kept,
        )


def _verdict(rows: Sequence[MemoryRow], nodes: Sequence[Node], total: int) -> str:
    keeping = sum(row.calls for row in rows)
    verdict = f"{whole(total)} bytes ({told_bytes(total)}) kept for backward by {keeping:,} of {calls(len(nodes))}"
    if not total:
        return verdict
    parameters = sum(row.parameters for row in rows)
    return f"{verdict}, {whole(parameters)} of them parameters and buffers; most by {short_line(rows[0].what)}: {rows[0].bytes / total:.0%}"


def _advice(rows: Sequence[MemoryRow], nodes: Sequence[Node]) -> list[str]:
    advice = []
    if any(row.shared for row in rows):
        advice.append("shared: a call before keeps this memory too, and it is counted there.")
    best = sorted((row for row in rows if (row.checkpoint or 0) > 0), key=lambda row: -(row.checkpoint or 0))
    worth = [row for row in best[:3] if (row.checkpoint or 0) >= WORTH * (best[0].checkpoint or 0)]
    if worth:
        told = ", ".join(f"{row.what}: {whole(row.checkpoint or 0)}" for row in worth)
        advice.append(f"tracer.checkpoint(module, x) in place of module(x) would give back, in bytes: {told}.")
    packed = sum(node.packed for node in nodes)
    if packed:
        advice.append(
            f"{calls(packed)}: saved-tensor hooks hold what they saved, which is not counted (a checkpoint: the inputs of its stretch)."
        )
    freed = sum(node.saved is None for node in nodes)
    if freed:
        advice.append(
            f"{calls(freed)}: a backward pass has released what they saved. Ask before it, or retain_graph=True."
        )
    return advice
