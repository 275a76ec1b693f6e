"""Every line of ``docs/corners.md`` is proved by a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "corners.md").read_text()
#: The body rows of all tables.
ROWS = [line for table in re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE) for line in table.splitlines()]


@cache
def names_in(path: Path) -> set[str]:
    """The names of the test functions of a file."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def proofs(row: str) -> list[str]:
    """The tests that the last column names."""
    return re.findall(r"`([^`]+)`", row.split("|")[-2])


def test_the_page_has_its_tables() -> None:
    assert len(ROWS) > 100
    assert all(row.count("|") == 4 for row in ROWS), "a row has three columns"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"[`*]", "", row.split("|")[1].strip())[:50])
def test_each_line_names_tests_that_exist(row: str) -> None:
    assert proofs(row), "the line names no test"
    for proof in proofs(row):
        file, _, name = proof.partition("::")
        path = TESTS / re.sub("^rules/", "ops_registry/rules/", file)
        assert name.startswith("test_") and path.is_file() and name in names_in(path), f"there is no {proof}"
