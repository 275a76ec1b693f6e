"""What every report is: a verdict, rows of evidence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch

from ops_registry.sites import Site, short_line


class Row:
    """One row of a report. ``columns`` name the attributes that stand in the table."""

    columns: ClassVar[tuple[str, ...]] = ()

    def cells(self) -> tuple[str, ...]:
        """The row as text, a cell a column."""
        return tuple(as_text(getattr(self, name)) for name in self.columns)

    def __str__(self) -> str:
        return "  ".join(cell for cell in self.cells() if cell)


class Report:
    """The answer to one question: ``str()`` gives it as text, ``rows`` hold the evidence, ``to_dict()`` is for a file."""

    #: What the columns of its table are called.
    columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, verdict: str, rows: Sequence[Any] = (), fix: str = "") -> None:
        self.verdict = verdict
        self.rows = list(rows)
        #: What to do about it; empty where there is nothing.
        self.fix = fix

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __str__(self) -> str:
        parts = [self.verdict]
        if self.rows:
            parts.append(aligned(self.columns, [row.cells() for row in self.rows]))
        if self.fix:
            parts.append(self.fix)
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Verdict, rows and fix as numbers, texts, lists and dicts, which ``json`` can write.

        A tensor becomes its shape, dtype and norm.
        """
        rows = [{name: as_plain(getattr(row, name)) for name in row.columns} for row in self.rows]
        return {"report": type(self).__name__.lower(), "verdict": self.verdict, "rows": rows, "fix": self.fix}


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: numbers to the right, all else to the left."""
    table = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    lines = []
    for line in table:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return not text or text.replace(",", "").replace(".", "").replace("-", "").replace("e+", "").isdigit()


def as_text(value: Any) -> str:
    """One value as it stands in a table."""
    if value is None:
        return ""
    if isinstance(value, Site):
        return place(value)
    if isinstance(value, torch.Tensor):
        return f"|{norm(value):.3g}| {list(value.shape)}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(as_text(item) for item in value)
    return str(value)


def as_plain(value: Any) -> Any:
    """One value as ``json`` can write it."""
    if isinstance(value, Site):
        return {"op": value.op, "module": value.module, "line": value.line}
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."), "norm": norm(value)}
    if isinstance(value, dict):
        return {str(name): as_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def norm(tensor: torch.Tensor) -> float:
    """The Euclidean norm of a plain tensor of any layout and dtype."""
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    wide = dense.to(torch.complex128 if dense.is_complex() else torch.float64)
    return float(torch.linalg.vector_norm(wide))


def place(site: Site | None) -> str:
    """Where a call was made: ``file.py:12 in layer4.0``; empty where nobody noted it."""
    if site is None:
        return ""
    line = "" if site.line is None else short_line(site.line)
    return f"{line} in {site.module}" if site.module else line
