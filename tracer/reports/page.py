"""A report as a page of its own, which needs no network: its text, a picture, tables that are sorted and searched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from tracer.reports.tables import TableRow, html_table

#: Around the name of a column: a button, for those too who do not use a mouse.
BUTTON = '<button type="button">{}</button>'


def html_page(title: str, text: Iterable[str], tables: Mapping[str, Sequence[TableRow]], picture: str = "") -> str:
    """The page. ``text`` has its lines, ``tables`` their rows by their headings, and ``picture`` is HTML itself.

    Script and styles stand in the page.
    """
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in text)
    sections = "".join(_section(heading, rows) for heading, rows in tables.items() if rows)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{_asset("page.css")}</style>\n'
        f"</head>\n<body>\n<h1>{escape(title)}</h1>\n{lines}{picture}{sections}"
        f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _section(heading: str, rows: Sequence[TableRow]) -> str:
    return (
        f'<section class="tabled"><h2>{escape(heading)}</h2>'
        f'<div class="tools"><input type="search" placeholder="search" aria-label="search in {escape(heading)}">'
        f'<output aria-live="polite"></output></div>\n<div class="table">{html_table(rows, BUTTON)}</div></section>\n'
    )


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
