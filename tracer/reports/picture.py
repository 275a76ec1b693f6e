"""``draw``: a picture of a graph, as DOT, SVG or Mermaid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from tracer.errors import MissingPackageError, ReportError
from tracer.graph import Graph
from tracer.reports.boxes import Box, arrange
from tracer.reports.dot import render, write_dot
from tracer.reports.mermaid import write_mermaid
from tracer.reports.page import html_page
from tracer.reports.recorded import Recorded, read_graph
from tracer.reports.report import Report, Row, calls
from tracer.reports.subjects import check_graph
from tracer.reports.words import RELEASED, SITES_OFF, told_bytes


@dataclass(frozen=True)
class BoxRow(Row):
    """One box of a picture. Its figures are those of all calls that it stands for, in every repetition of a folded block."""

    #: ``call``, ``module``, ``leaf`` or ``cut``.
    kind: str
    name: str
    #: Path of the module in which it is drawn, of the first where several equal ones are drawn as one.
    module: str
    calls: int
    #: Of the result of the last call; None where that has several.
    shape: tuple[int, ...] | None
    parameters: int
    kept_bytes: int
    #: ``file.py:12``, of the first call.
    line: str | None
    #: Whether a gradient is zero here: by the rule of a call, or in ``.grad`` of a parameter or leaf.
    zero: bool

    def cells(self) -> list[str]:
        return [
            self.kind,
            self.name,
            self.module,
            f"{self.calls:,}" if self.calls else "",
            "" if self.shape is None else str(self.shape),
            f"{self.parameters:,}" if self.parameters else "",
            told_bytes(self.kept_bytes) if self.kept_bytes else "",
            self.line or "",
            "yes" if self.zero else "",
        ]


class Picture(Report[BoxRow]):
    """A drawn graph. Its rows are its boxes. A notebook shows it.

    Modules are frames. Equal blocks among the members of a list are drawn as one, with dashed arrows from one to the next. A box is the
    larger the more memory it keeps for backward. Cuts are red, and boxes where a gradient is zero are amber.
    """

    title = "Graph"

    def __init__(self, recorded: Recorded) -> None:
        self._drawing = arrange(recorded)
        rows = [_row(box) for box in self._drawing.boxes]
        gone = "" if recorded.alive or not recorded.calls else ", all of them gone"
        kept = told_bytes(sum(row.kept_bytes for row in rows))
        super().__init__(
            f"{calls(len(recorded.calls))}{gone}, {kept} kept for backward, in {len(rows)} boxes. A box is {self._drawing.detail}.",
            rows,
            list(_advice(recorded, rows)),
        )

    @property
    def source(self) -> str:
        """The picture in DOT, the language of Graphviz. Raises ``MissingPackageError`` where the package graphviz is not installed."""
        source: str = write_dot(self._drawing, self.verdict).source
        return source

    def to_svg(self) -> str:
        """The picture as an ``<svg>`` element. Raises ``MissingPackageError`` where graphviz or its program ``dot`` is not installed."""
        return self._svg

    @cached_property
    def _svg(self) -> str:
        svg = render(write_dot(self._drawing, self.verdict), "svg").decode()
        return svg[svg.index("<svg") :]  # without the lines that only a file of its own needs

    def to_mermaid(self) -> str:
        """The picture as a Mermaid flowchart, which GitHub and JupyterLab draw. It needs no package."""
        return write_mermaid(self._drawing, self.verdict)

    def save(self, path: str | Path) -> None:
        """Write it to a file, in the form that the ending of its name asks for.

        ``.svg``, ``.png`` and ``.pdf`` are drawn by ``dot``, ``.dot`` and ``.gv`` hold the source, ``.mmd`` holds Mermaid, ``.html`` a
        page. Raises ``MissingPackageError`` where what draws it is not installed, ``ReportError`` for another ending.
        """
        path = Path(path)
        writers = {
            ".svg": lambda: self.to_svg().encode(),
            ".png": lambda: render(write_dot(self._drawing, self.verdict), "png"),
            ".pdf": lambda: render(write_dot(self._drawing, self.verdict), "pdf"),
            ".dot": lambda: self.source.encode(),
            ".gv": lambda: self.source.encode(),
            ".mmd": lambda: self.to_mermaid().encode(),
            ".html": lambda: self.to_html().encode(),
        }
        if path.suffix.lower() not in writers:
            raise ReportError(f"a picture is not saved as {path.name!r}: the name must end in {', '.join(writers)}")
        path.write_bytes(writers[path.suffix.lower()]())

    def to_html(self) -> str:
        """A page of its own that needs no network: the picture, and its boxes in a table that is sorted and searched in the browser."""
        return html_page(self.title, [self.verdict, *self.advice], {"Boxes": self.rows}, self.to_element())

    def to_element(self) -> str:
        """The picture as part of a page: the SVG, or the Mermaid text where nothing is there to draw it."""
        try:
            return f'<div class="picture">{self.to_svg()}</div>\n'
        except MissingPackageError as missing:
            return f'<p>{escape(str(missing))}</p>\n<pre class="mermaid">{escape(self.to_mermaid())}</pre>\n'

    def _repr_svg_(self) -> str | None:
        try:
            return self.to_svg()
        except MissingPackageError:
            return None

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What JupyterLab draws where no SVG is to be had."""
        return {} if self._repr_svg_() is not None else {"text/vnd.mermaid": self.to_mermaid()}

    #: A notebook would show a table before the picture.
    _repr_html_ = None  # type: ignore[assignment]


def draw(graph: Graph) -> Picture:
    """A picture of ``graph``: ``.to_svg()``, ``.source`` (DOT), ``.to_mermaid()``, ``.save(path)``; a notebook shows it.

    What is alive is drawn, and where nothing is, the notes of calls that are gone. A graph of many calls is drawn in less detail: repeated
    blocks as one, then loops as one, then whole modules, so that it stays readable. Modules and cuts are known inside
    ``tracer.Graph(sites=True)``; without it a graph is drawn call by call, or by op.
    """
    check_graph("draw", graph)
    return Picture(read_graph(graph))


def _row(box: Box) -> BoxRow:
    return BoxRow(
        box.kind, box.name, box.part.path, box.calls, box.shape, box.parameters, box.kept_bytes, box.line, box.zero
    )


def _advice(recorded: Recorded, rows: list[BoxRow]) -> Iterator[str]:
    cuts = [row for row in rows if row.kind == "cut"]
    if cuts:
        places = ", ".join(row.name if row.line is None else f"{row.name} at {row.line}" for row in cuts[:5])
        more = f" and {len(cuts) - 5} more" if len(cuts) > 5 else ""
        yield f"Red, a history ends: {places}{more}. tracer.why(tensor, loss, graph) says whether that costs a gradient."
    zero = [row for row in rows if row.zero]
    if zero:
        names = ", ".join(f"{row.name} in {row.module}" if row.module else row.name for row in zero[:5])
        more = f" and {len(zero) - 5} more" if len(zero) > 5 else ""
        yield f"Amber, a gradient is zero: {names}{more}. tracer.why(tensor, loss, graph) says which op made it zero."
    if recorded.released:
        yield RELEASED
    if not recorded.sites:
        yield SITES_OFF
