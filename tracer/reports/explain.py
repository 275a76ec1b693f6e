"""``explain``: the calls of a graph by module, readable like the summary of a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ops_registry.sites import Site
from tracer.errors import ReportError
from tracer.graph import Graph
from tracer.reports.blocks import fold
from tracer.reports.page import html_page
from tracer.reports.picture import Picture
from tracer.reports.recorded import Recorded, read_graph
from tracer.reports.report import Report, Row, calls
from tracer.reports.subjects import check_graph
from tracer.reports.summary import OWN, TOP, SummaryRow, rows_by_module, rows_by_op, total
from tracer.reports.words import RELEASED, SITES_OFF, told_bytes

#: The share of the memory from which on a module is named in the verdict.
MUCH = 0.5

#: A table of a page has no more rows: a browser takes its time with them.
MOST_ROWS = 2000


class Explanation(Report[SummaryRow]):
    """What ``explain`` found, by module, each after the one that holds it, or by op."""

    title = "What the graph holds"

    def __init__(self, recorded: Recorded, depth: int) -> None:
        rows = rows_by_module(recorded, fold(recorded), depth) if recorded.sites else rows_by_op(recorded)
        super().__init__(_verdict(recorded, rows), rows, list(_advice(recorded)))
        self._recorded = recorded

    def to_html(self) -> str:
        """A page of its own that needs no network: the picture, and tables that are sorted and searched in the browser."""
        recorded = self._recorded
        picture = Picture(recorded)
        tables: dict[str, Sequence[Row]] = {"By op": rows_by_op(recorded)}
        if recorded.sites:
            tables = {
                "By module": self.rows,
                **tables,
                "Where histories end": _cut_rows(recorded),
                **_every_module(recorded),
            }
        lines = [self.verdict, *dict.fromkeys([*self.advice, *picture.advice])]
        return html_page(self.title, lines, tables, picture.to_element())


@dataclass(frozen=True)
class ModuleRow(SummaryRow):
    """A module under its whole path."""

    def cells(self) -> list[str]:
        return [self.module, *super().cells()[1:]]


@dataclass(frozen=True)
class CutRow(Row):
    """A place where histories end."""

    cut: str
    site: Site
    #: The ops whose results are cut off; none where they are leaves.
    results_of: tuple[str, ...]


def explain(graph: Graph, depth: int = 2) -> Explanation:
    """The calls of ``graph`` by module, ``depth`` levels down: ops, shapes, parameters, bytes kept for backward.

    A list of modules and a number in it (``layers.3``) are one level. Equal blocks of a list are one row. The rows of a level add up to
    the row above them, and those of the first to ``graph.kept_bytes()``: memory and parameters that several share are counted where they
    are first used. What is alive is counted, and where nothing is, the notes of calls that are gone. Modules are known inside
    ``tracer.Graph(sites=True)``; without it the rows are by op. Raises ``ReportError`` for a depth below 1.
    """
    check_graph("explain", graph)
    if depth < 1:
        raise ReportError(
            f"explain() was asked for depth={depth}: 1 shows the modules at the top of the model, 2 those in them too"
        )
    return Explanation(read_graph(graph), depth)


def _verdict(recorded: Recorded, rows: Sequence[SummaryRow]) -> str:
    found = total(recorded)
    modules = len({call.module for call in recorded.calls} - {""})
    inside = f" in {modules:,} module{'s' if modules > 1 else ''}" if modules else ""
    kept = told_bytes(found.kept_bytes)
    told = f"{calls(len(recorded.calls))}{inside}, {found.parameters:,} parameters, {kept} kept for backward."
    largest = max((row for row in rows if row.level == 1), key=lambda row: row.kept_bytes, default=None)
    if largest is not None and 0 < MUCH * found.kept_bytes <= largest.kept_bytes < found.kept_bytes:
        where = largest.module or largest.name
        told += f" {largest.kept_bytes / found.kept_bytes:.0%} of it in {where}" + (
            ", repeated." if largest.times > 1 else "."
        )
    return told


def _advice(recorded: Recorded) -> Iterator[str]:
    if not recorded.alive and recorded.calls:
        yield "All of these calls are gone: nothing of them is kept any more, and their shapes and parameters are not known."
    elif recorded.gone:
        that = "that is gone is" if recorded.gone == 1 else "that are gone are"
        yield f"{calls(recorded.gone)} {that} left out: graph.calls() has what was noted of them."
    if recorded.released:
        yield RELEASED
    if not recorded.sites:
        yield SITES_OFF


def _cut_rows(recorded: Recorded) -> list[CutRow]:
    return [
        CutRow(cut.what, cut.site, tuple(dict.fromkeys([*(recorded.calls[i].op for i in cut.calls), *cut.gone])))
        for cut in recorded.cuts
    ]


def _every_module(recorded: Recorded) -> dict[str, Sequence[Row]]:
    """Each module by itself, none folded, with its heading."""
    unfolded = rows_by_module(recorded, fold(recorded, smallest=sys.maxsize), sys.maxsize)
    rows = [ModuleRow(**vars(row)) for row in unfolded if row.name not in (OWN, TOP)]
    heading = "Every module"
    if len(rows) > MOST_ROWS:
        heading += f": the {MOST_ROWS:,} of {len(rows):,} that keep most"
        rows = sorted(rows, key=lambda row: -row.kept_bytes)[:MOST_ROWS]
    return {heading: rows}
