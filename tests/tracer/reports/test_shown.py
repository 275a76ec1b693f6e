"""How reports are shown: by ``rich`` in a terminal, in a notebook, on a page of their own."""

from __future__ import annotations

import io
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest

from tracer.reports.report import Report, Row


@dataclass(frozen=True)
class Size(Row):
    name: str
    size: int
    note: str = ""

    def cells(self) -> list[str]:
        return [self.name, f"{self.size:,} B", self.note]


REPORT = Report(
    "two <ops>", [Size("relu & [bold]co[/bold]", 1024), Size("  soft<max>", 5, "")], ["Do this & that.", "Or nothing."]
)


class Seen(HTMLParser):
    """The text of a page, and the tags that are open; a tag that is closed in the wrong place fails."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append(("", dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] = (self.cells[-1][0] + data, self.cells[-1][1])
        if not {"script", "style"} & set(self.open):
            self.text += data


def terminal(width: int) -> str:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=width)
    console.print(REPORT)
    return console.file.getvalue()


def test_rich_shows_a_table_with_names_as_they_are() -> None:
    lines = [line.rstrip() for line in terminal(100).splitlines()]
    assert lines[0] == "two <ops>" and lines[-2:] == ["Do this & that.", "Or nothing."]
    table = [line for line in lines if "B" in line]
    assert [line.split("  ")[0].strip() for line in table] == ["relu & [bold]co[/bold]", ""]
    assert [line.index("B") for line in table] == [max(map(len, table)) - 1] * 2, "numbers are flush right"
    assert "note" not in "".join(lines), "a column in which all is empty is left out"


def test_a_narrow_terminal_loses_no_text() -> None:
    shown = "".join(terminal(30).split())
    assert "1,024B" in shown and "co[/bold]" in shown


def test_a_notebook_shows_the_rows_with_names_as_they_are() -> None:
    seen = Seen(REPORT._repr_html_() or "")
    assert [text for text, _ in seen.cells] == ["relu & [bold]co[/bold]", "1,024 B", "soft<max>", "5 B"]
    assert seen.text.startswith("two <ops>") and "Do this & that." in seen.text


def test_a_cell_of_a_number_sorts_by_it_and_a_name_in_front_of_which_there_is_space_is_indented() -> None:
    cells = Seen(REPORT._repr_html_() or "").cells
    assert [attributes.get("data-number") for _, attributes in cells] == [None, "1024", None, "5"]
    assert ["padding-left" in (attributes.get("style") or "") for _, attributes in cells] == [False, False, True, False]


def test_a_page_holds_all_that_it_needs() -> None:
    page = REPORT.to_html()
    seen = Seen(page)
    assert page.startswith("<!DOCTYPE html>") and "two <ops>" in seen.text and len(seen.cells) == 4
    for outside in ("http:", "https:", "src=", "@import", "url("):
        assert outside not in page
    assert page.count("<script>") == page.count("<style>") == 1


def test_a_report_without_rows_is_shown_too() -> None:
    report: Report[Size] = Report("nothing")
    console = pytest.importorskip("rich.console").Console(file=io.StringIO())
    console.print(report)
    assert console.file.getvalue().strip() == "nothing"
    assert Seen(report.to_html()).cells == [] and Seen(report._repr_html_() or "").text == "nothing"
