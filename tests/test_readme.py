"""Every Python block of the README and of the pages in ``docs/`` runs, and prints what is shown; every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]


#: A block of Python, and the ``text`` block that may follow it directly: what it prints.
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str | None]]:
    """The blocks of a page, each with as many empty lines before it as put its lines where they are in the page, and what it prints."""
    text = page.read_text()
    return [("\n" * text.count("\n", 0, found.start(1)) + found[1], found[2]) for found in BLOCK.finditer(text)]


def test_the_readme_has_code() -> None:
    assert len(blocks(PAGES[0])) >= 5


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, clean_registry: None, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"__name__": "page"}
    for code, printed in blocks(page):
        exec(compile(code, str(page), "exec"), names)
        shown = capsys.readouterr().out
        assert printed is None or shown == printed
