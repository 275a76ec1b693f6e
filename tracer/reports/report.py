"""What all reports have in common: a verdict, rows of evidence, advice; as text, and as plain values for ``json``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from html import escape
from typing import Any, Generic, TypeVar

import torch

from ops_registry.sites import Site, short_line
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.reports.page import html_page
from tracer.reports.tables import html_table, rich_table

#: How many rows the text of a report shows; ``rows`` has all of them.
SHOWN = 50


class Row:
    """One line of evidence. A subclass is a dataclass: its fields are the columns, but for those with ``repr=False``."""

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(f.name for f in fields(cls) if f.repr)  # type: ignore[arg-type]

    def cells(self) -> list[str]:
        """What the text shows, column by column."""
        return [as_text(getattr(self, name)) for name in self.columns()]

    def numbers(self) -> list[float | None]:
        """What each column is sorted by in a page, where it is a number."""
        values = [getattr(self, name) for name in self.columns()]
        return [v if isinstance(v, int | float) and not isinstance(v, bool) else None for v in values]

    def to_dict(self) -> dict[str, Any]:
        """The columns, as values that ``json`` can write."""
        return {name: as_plain(getattr(self, name)) for name in self.columns()}

    def __str__(self) -> str:
        shown = zip(self.columns(), self.cells(), strict=True)
        return "  ".join(f"{name} {cell}" for name, cell in shown if cell)


R = TypeVar("R", bound=Row)


class Report(Generic[R]):
    """A verdict in one sentence, the rows that show it, and what to do about it. Iterating goes over the rows.

    ``str()`` is plain text. ``rich.print(report)`` shows a table in a terminal, a notebook shows one too, and ``to_html()`` is a page.
    """

    #: Heads the page.
    title = "Report"

    def __init__(self, verdict: str, rows: Sequence[R] = (), advice: Sequence[str] = ()) -> None:
        self.verdict = verdict
        self.rows = list(rows)
        self.advice = list(advice)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns; none where there are no rows."""
        return self.rows[0].columns() if self.rows else ()

    def to_dict(self) -> dict[str, Any]:
        """All of it, as values that ``json`` can write: ``verdict``, ``columns``, ``rows``, ``advice``. A tensor is told by its kind."""
        return {
            "verdict": self.verdict,
            "columns": list(self.columns),
            "rows": [row.to_dict() for row in self.rows],
            "advice": list(self.advice),
        }

    def __str__(self) -> str:
        parts = [self.verdict]
        if self.rows:
            parts.append(table(self.columns, [row.cells() for row in self.rows[:SHOWN]]))
        if len(self.rows) > SHOWN:
            parts.append(f"and {len(self.rows) - SHOWN} more rows")
        return "\n".join(parts + self.advice)

    __repr__ = __str__

    def __rich__(self) -> Any:
        """What ``rich.print(report)`` shows: all rows, in the width of the terminal."""
        from rich.console import Group
        from rich.text import Text

        return Group(Text(self.verdict), *([rich_table(self.rows)] if self.rows else []), Text("\n".join(self.advice)))

    def _repr_html_(self) -> str | None:
        """What a notebook shows."""
        advice = "".join(f"<p>{escape(line)}</p>" for line in self.advice)
        return f"<p>{escape(self.verdict)}</p>{html_table(self.rows)}{advice}"

    def to_html(self) -> str:
        """A page of its own that needs no network: the text, and the rows in a table that is sorted and searched in the browser."""
        return html_page(self.title, [self.verdict, *self.advice], {"Rows": self.rows})

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return True  # a report without rows is an answer too


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells under their names, in aligned columns; those of numbers are flush right. Columns in which all is empty are left out."""
    shown = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    lines = [[columns[i] for i in shown], *[[row[i] for i in shown] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [all(_is_number(row[i]) for row in rows if row[i]) for i in shown]
    aligned = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
        for line in lines
    ]
    return "\n".join(f"  {line.rstrip()}" for line in aligned)


#: ``1,536``, ``12 x 23``, ``3.9 MiB``, ``4.5e-07``, ``12 %``, ``nan``.
_NUMBER = re.compile(r"-?(\d[\d,.]*(e[+-]?\d+)?( x [\d,]+| ?%| [KMG]?i?B)?|nan|inf)")


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def as_text(value: Any) -> str:
    """A cell as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Site):
        return place(value)
    if isinstance(value, torch.Tensor):
        return f"{kind(value)}, norm {norm(value):.4g}"
    if isinstance(value, list | tuple):
        texts = [as_text(item) for item in value]
        return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
    return str(value)


def as_plain(value: Any) -> Any:
    """A cell as a value that ``json`` can write."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no infinity
    if isinstance(value, Site):
        return {"op": value.op, "module": value.module, "line": value.line}
    if isinstance(value, torch.Tensor):
        return {"kind": kind(value), "norm": as_plain(norm(value))}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return str(value)


def place(site: Site | None) -> str:
    """``model.py:12 in layer4.1``; empty where no site is known."""
    if site is None:
        return ""
    line = "an unknown line" if site.line is None else short_line(site.line)
    return f"{line} in {site.module}" if site.module else line


def kind(tensor: torch.Tensor) -> str:
    """``float32[3, 4]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def norm(tensor: torch.Tensor) -> float:
    """The root of the sum of squares, of a tensor in any layout."""
    with DisableTorchFunctionSubclass(), torch.no_grad():
        values = tensor.detach()
        if values.layout is not torch.strided:
            values = values.coalesce().values() if values.layout is torch.sparse_coo else values.values()
        return float(torch.linalg.vector_norm(values.to(torch.complex128 if values.is_complex() else torch.float64)))


def calls(count: int) -> str:
    """``1 call``, ``5 calls``."""
    return "1 call" if count == 1 else f"{count:,} calls"
