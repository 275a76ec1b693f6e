"""The page of ``explain`` in a real browser: it opens without an error, asks no network, sorts and searches.

It runs where playwright is installed and a Chromium is found: ``apt-get install chromium``, or ``playwright install chromium``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blocks import language_graph

import tracer

pytestmark = pytest.mark.browser

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

#: By these names a Chromium is found on the path.
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, CHROMIUM)), None)
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium is installed, neither on the path nor by playwright")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page that was opened from a file, and what it said and asked for."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.page = browser.new_page()
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def section(self, heading: str) -> Any:
        """The part of the page with a table under ``heading``."""
        return self.page.locator("section.tabled").filter(
            has=self.page.get_by_role("heading", name=heading, exact=True)
        )

    def column(self, heading: str, name: str) -> list[str]:
        """The cells of a column that are shown, from the top."""
        section = self.section(heading)
        index = section.locator("th").all_inner_texts().index(name) + 1
        return section.locator(f"tbody tr:visible td:nth-child({index})").all_inner_texts()

    def head(self, heading: str, name: str) -> Any:
        """The button in the head of a column."""
        return self.section(heading).locator("th button", has_text=re.compile(f"^{name}$"))


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    graph, loss = language_graph(False, False, True)
    with graph:
        loss.item()
    file = tmp_path / "page.html"
    file.write_text(tracer.explain(graph, 3).to_html(), encoding="utf-8")
    opened = Opened(browser, file)
    yield opened
    opened.page.close()
    del loss


def test_it_opens_without_an_error_and_asks_for_nothing_else(opened: Opened) -> None:
    assert opened.faults == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [opened.page.url]


def test_every_table_is_there(opened: Opened) -> None:
    headings = opened.page.get_by_role("heading", level=2).all_inner_texts()
    assert headings == ["By module", "By op", "Where histories end", "Every module"]
    assert opened.column("Where histories end", "cut") == ["item"]


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of Graphviz is not installed")
def test_the_picture_is_drawn(opened: Opened) -> None:
    pytest.importorskip("graphviz")
    picture = opened.page.locator(".picture svg")
    assert picture.bounding_box()["height"] > 100
    assert picture.locator("text", has_text="layers.0 .. layers.1: 2 times").is_visible()


def test_a_click_sorts_by_number_another_turns_it_round_a_third_restores_the_order(opened: Opened) -> None:
    before = opened.column("By op", "name")
    calls = [int(cell) for cell in opened.column("By op", "calls")]
    assert calls != sorted(calls) and calls != sorted(calls, reverse=True) and max(calls) > 9 > min(calls)
    opened.head("By op", "calls").click()
    assert [int(cell) for cell in opened.column("By op", "calls")] == sorted(calls, reverse=True)
    opened.head("By op", "calls").click()
    assert [int(cell) for cell in opened.column("By op", "calls")] == sorted(calls)
    opened.head("By op", "calls").click()
    assert opened.column("By op", "name") == before
    assert opened.faults == []


def test_bytes_are_sorted_by_their_number_and_names_by_the_alphabet(opened: Opened) -> None:
    def in_bytes(cell: str) -> float:
        number, unit = cell.split()
        return float(number) * {"B": 1, "KiB": 1024, "MiB": 1024**2}[unit]

    opened.head("By op", "kept_bytes").click()
    sizes = [in_bytes(cell) for cell in opened.column("By op", "kept_bytes")]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 1024 > sizes[-1]
    opened.head("By op", "name").click()
    names = opened.column("By op", "name")
    assert names == sorted(names) and len(names) > 9


def test_a_search_shows_the_rows_with_every_word_in_them_and_counts_them(opened: Opened) -> None:
    section = opened.section("Every module")
    every = opened.column("Every module", "name")
    section.get_by_role("searchbox").fill("LAYERS.1 linear")
    found = opened.column("Every module", "name")
    assert 0 < len(found) < len(every) and all("layers.1" in name for name in found)
    assert section.locator("output").inner_text() == f"{len(found)} of {len(every)} rows"
    assert len(opened.column("By op", "name")) > len(found) or len(opened.column("By op", "name")) > 9, (
        "the others stay"
    )
    section.get_by_role("searchbox").fill("")
    assert opened.column("Every module", "name") == every
    assert opened.faults == []


def test_it_is_used_without_a_mouse(opened: Opened) -> None:
    opened.head("By op", "calls").focus()
    opened.page.keyboard.press("Enter")
    calls = [int(cell) for cell in opened.column("By op", "calls")]
    assert calls == sorted(calls, reverse=True)
    assert opened.section("By op").locator("th[aria-sort=descending]").all_inner_texts() == ["calls"]


def test_names_are_read_as_text(browser: Any, tmp_path: Path) -> None:
    model = torch.nn.Sequential()
    model.add_module("<img src=x onerror=alert(1)>", torch.nn.Tanh())
    x = tracer.tensor(torch.ones(1), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        y = model(x)
    file = tmp_path / "page.html"
    file.write_text(tracer.explain(graph).to_html(), encoding="utf-8")
    opened = Opened(browser, file)
    assert opened.column("Every module", "name") == ["<img src=x onerror=alert(1)>"]
    assert opened.page.locator("img").count() == 0 and opened.faults == []
    opened.page.close()
    del y
