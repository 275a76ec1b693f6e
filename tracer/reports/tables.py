"""Rows of a report as a table, in HTML and for ``rich``. As in plain text, columns in which all is empty are left out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Protocol

#: In a narrow terminal a column of text is not made narrower than this, in characters.
NARROWEST = 10


class TableRow(Protocol):
    """What a table is made of: the rows of a report."""

    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""

    def cells(self) -> list[str]:
        """What is shown in each; spaces in front indent it."""

    def numbers(self) -> list[float | None]:
        """What each is sorted by, where it is a number."""


def html_table(rows: Sequence[TableRow], head: str = "{}") -> str:
    """A ``<table>``; ``head`` is what stands in a cell of its head, around the name of the column."""
    if not rows:
        return ""
    cells = [row.cells() for row in rows]
    shown = shown_columns(cells)
    heads = "".join(f'<th scope="col">{head.format(escape(rows[0].columns()[i]))}</th>' for i in shown)
    lines = []
    for row, texts in zip(rows, cells, strict=True):
        numbers = row.numbers()
        lines.append(f"<tr>{''.join(_html_cell(texts[i], numbers[i]) for i in shown)}</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def rich_table(rows: Sequence[TableRow]) -> Any:
    """A ``rich.table.Table`` of at least one row. ``rich`` must be installed."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = [row.cells() for row in rows]
    numbers = [row.numbers() for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    shown = shown_columns(cells)
    for i in shown:
        if any(line[i] is not None for line in numbers):
            table.add_column(Text(rows[0].columns()[i]), justify="right", no_wrap=True)
        else:
            longest = max(len(texts[i]) for texts in cells)
            table.add_column(Text(rows[0].columns()[i]), overflow="fold", min_width=min(longest, NARROWEST))
    for texts in cells:
        table.add_row(*[Text(texts[i]) for i in shown])
    return table


def shown_columns(cells: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which there is something."""
    return [i for i, column in enumerate(zip(*cells, strict=True)) if any(column)]


def _html_cell(text: str, number: float | None) -> str:
    if number is not None:
        return f'<td style="text-align:right" data-number="{number}">{escape(text)}</td>'
    indent = len(text) - len(text.lstrip())
    style = f' style="padding-left:{0.6 + 0.6 * indent:.1f}rem"' if indent else ""
    return f"<td{style}>{escape(text.lstrip())}</td>"
