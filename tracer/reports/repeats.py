"""``repeats``: expressions that are computed more than once, and what computing each once would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ops_registry.sites import Site
from tracer.errors import GradientArgumentError, ReportError
from tracer.graph import Graph
from tracer.node import Node, flat
from tracer.reports.grouping import whole
from tracer.reports.kept import VALUE, kept_of
from tracer.reports.numbering import Numbering, place_of, result_memory
from tracer.reports.report import Report, Row, as_text, calls
from tracer.reports.subjects import check_graph
from tracer.reports.timings import Timings
from tracer.reports.words import told_bytes


@dataclass(frozen=True)
class RepeatRow(Row):
    """An expression that is computed more than once: as large as can be, a whole block where all of it is repeated."""

    #: The ops of one computation, in their order.
    ops: list[str]
    #: How many calls one computation has.
    calls: int
    #: How often it is computed.
    times: int
    #: The bytes kept for backward that computing it once would save.
    bytes: int
    size: str
    #: Milliseconds that it would save, forward and backward; None without timings.
    saves_ms: float | None
    #: Where the last call of each computation was made, as far as a graph with sites knows.
    sites: list[Site]

    @property
    def redundant(self) -> int:
        """How many calls compute what has been computed before."""
        return self.calls * (self.times - 1)

    def cells(self) -> list[str]:
        saves = "" if self.saves_ms is None else f"{self.saves_ms:.3f}"
        return [
            as_text(self.ops),
            whole(self.calls),
            whole(self.times),
            whole(self.bytes),
            self.size,
            saves,
            as_text(self.sites),
        ]


class Repeats(Report[RepeatRow]):
    """What ``repeats`` returns."""

    title = "Repeats"


def repeats(graph: Graph, timings: Timings | None = None) -> Repeats:
    """The expressions that ``graph`` has computed more than once, those that keep most first.

    Calls are repeated where the same op was given the same arguments: tensors in the same memory at the same version, results of calls that
    are repeated themselves, constants that hold the same numbers. (Writes through ``.data`` have no version, here as for torch.) Random ops
    never count, nor do norms with running statistics, which torch updates uncounted, nor ops that torch's own table does not have: custom
    Functions, ops of a library, levels of ``torch.vmap``. An expression all of whose calls are repeated equally often is one row.

    ``bytes`` is what would be kept less for backward if each were computed once. ``timings`` (``tracer.timings(step, by="op")`` of the
    same model) gives ``saves_ms``, by the mean time of each op's calls. Who writes in place into one of the results needs them apart.

    Record inside ``tracer.Graph(values=True)``, with ``sites=True`` to see where. Without values only those calls can be told whose rule
    saves every argument; the advice says how many could not.

    Raises ``GradientArgumentError`` for ``timings`` that are not by op.
    """
    check_graph("repeats", graph)
    if timings is not None and not isinstance(timings, Timings):
        raise ReportError(
            f"repeats() was given a {type(timings).__name__} for timings: it takes what tracer.timings(step, by='op') returned"
        )
    if timings is not None and timings.by != "op":
        raise GradientArgumentError(
            f"repeats() was given timings by {timings.by!r}: it needs tracer.timings(..., by='op')"
        )
    nodes = graph.nodes()
    numbering = Numbering(nodes)
    repeated = {number: members for number, members in numbering.classes.items() if len(members) > 1}
    blocks = _blocks(repeated, numbering)
    #: The call whose result would be used, for each one that repeats it.
    firsts = {node: members[0] for members in repeated.values() for node in members[1:]}
    saved = _saved_bytes(nodes, firsts)
    per_call = None if timings is None else {row.what: row.total_ms / row.calls for row in timings if row.calls}
    rows = [_row([repeated[number] for number in block], saved, per_call) for block in blocks]
    rows.sort(key=lambda row: (-row.bytes, -row.redundant))
    return Repeats(_verdict(rows, nodes), rows, _advice(rows, numbering))


def _blocks(repeated: Mapping[int, list[Node]], numbering: Numbering) -> list[list[int]]:
    """The numbers of repeated calls, those together that feed one another and come equally often."""
    leader = {number: number for number in repeated}

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    for number, members in repeated.items():
        for parent in flat(members[0].parents):
            source = numbering.number_of.get(place_of(parent)[0])
            if source is not None and source in repeated and len(repeated[source]) == len(members):
                leader[find(source)] = find(number)
    blocks: dict[int, list[int]] = defaultdict(list)
    for number in repeated:
        blocks[find(number)].append(number)
    return list(blocks.values())


def _row(block: Sequence[Sequence[Node]], saved: Mapping[Node, int], per_call: Mapping[str, float] | None) -> RepeatRow:
    block = sorted(block, key=lambda members: members[0].serial)
    again = [node for members in block for node in members[1:]]
    amount = sum(saved.get(node, 0) for node in again)
    sites = [node.site for node in block[-1]]
    return RepeatRow(
        [members[0].op for members in block],
        len(block),
        len(block[0]),
        amount,
        told_bytes(amount),
        None if per_call is None else sum(per_call.get(node.op, 0.0) for node in again),
        [site for site in sites if site is not None],
    )


def _saved_bytes(nodes: Sequence[Node], firsts: Mapping[Node, Node]) -> dict[Node, int]:
    """For each call that repeats another, the bytes that are kept for it: what it keeps, and its result where others keep that."""
    memory = result_memory(nodes)
    #: The memory that would be kept in place of a repeated result; that result's own where nobody keeps the first one.
    instead: dict[int, tuple[Node, int]] = {}
    for (node, index), storage in memory.items():
        if node in firsts:
            instead[storage] = node, memory.get((firsts[node], index), storage)
    before: dict[int, int] = {}
    owner: dict[int, Node] = {}
    after: set[int] = set()
    for node in nodes:
        for kept in kept_of(node):
            if kept.name == VALUE:
                continue
            before[kept.storage] = kept.bytes
            if node not in firsts:
                after.add(instead[kept.storage][1] if kept.storage in instead else kept.storage)
            elif kept.storage not in owner:
                owner[kept.storage] = node
    owner.update({storage: node for storage, (node, other) in instead.items() if other != storage})
    saved: dict[Node, int] = defaultdict(int)
    for storage, size in before.items():
        if storage not in after and storage in owner:
            saved[owner[storage]] += size
    for storage, (node, other) in instead.items():
        if other in after and other not in before and storage in before:
            saved[node] -= before[storage]  # the first result was kept by nobody so far
            before[other] = before[storage]
    return saved


def _verdict(rows: Sequence[RepeatRow], nodes: Sequence[Node]) -> str:
    if not nodes:
        return "no recorded call is alive: hold the loss while you ask"
    if not rows:
        return f"none of {calls(len(nodes))} was found to compute what another has computed"
    again, amount = sum(row.redundant for row in rows), sum(row.bytes for row in rows)
    verdict = f"{again:,} of {calls(len(nodes))} compute again what another has computed, in {_expressions(len(rows))}"
    verdict += f"; computing each once would save {whole(amount)} bytes ({told_bytes(amount)}) kept for backward"
    times = [row.saves_ms for row in rows if row.saves_ms is not None]
    return f"{verdict} and {sum(times):.3f} ms" if times else verdict


def _expressions(count: int) -> str:
    return "1 expression" if count == 1 else f"{count:,} expressions"


def _advice(rows: Iterable[RepeatRow], numbering: Numbering) -> list[str]:
    advice = ["Compute it once and use the result in each place."] if rows else []
    if numbering.untold:
        advice.append(
            f"{calls(numbering.untold)}: what their arguments were is not known. Record inside tracer.Graph(values=True), which keeps "
            f"them all."
        )
    if numbering.uncounted:
        advice.append(
            f"{calls(numbering.uncounted)} with running statistics, into which torch writes uncounted: they never count."
        )
    if numbering.random:
        advice.append(f"{calls(numbering.random)} of random ops: they never count.")
    if numbering.foreign:
        advice.append(f"{calls(numbering.foreign)} of custom Functions and the like, of which nothing is known.")
    return advice
