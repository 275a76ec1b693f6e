"""Every line of ``docs/corners.md`` and of ``docs/borders.md`` is proved by a test that runs and asserts something.

That it runs is seen to by ``pytest_runtest_makereport`` in ``conftest.py``: of these tests, one that is skipped fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import proofs as pages
from support.proofs import ROWS, asserts, proofs


@cache
def functions_in(path: Path) -> dict[str, list[ast.FunctionDef]]:
    """The test functions of a file by name; of two with one name only the last would run."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


@pytest.mark.parametrize(("page", "least"), [("corners", 100), ("borders", 30)])
def test_a_page_has_its_tables(page: str, least: int) -> None:
    rows = [row for name, row in ROWS if name == page]
    assert len(rows) > least
    assert all(row.count("|") == 4 for row in rows), "a row has three columns"


@pytest.mark.parametrize(
    "row", [row for _, row in ROWS], ids=lambda row: re.sub(r"[`*]", "", row.split("|")[1].strip())[:50]
)
def test_each_line_names_tests_that_assert_something(row: str) -> None:
    assert proofs(row), "the line names no test"
    for path, name in proofs(row):
        assert path.is_file() and path.name.startswith("test_") and name.startswith("test_"), f"there is no {path}"
        definitions = functions_in(path).get(name, [])
        assert len(definitions) == 1, f"{path} has {len(definitions)} tests named {name}"
        assert asserts(definitions[0].body), f"{name} can pass without an assertion"


@pytest.mark.parametrize(
    ("body", "proves"),
    [
        ("pass", False),
        ("x = 1", False),
        ("assert True", False),
        ("if x:\n    assert x == 1", False),
        ("try:\n    assert x\nexcept ValueError:\n    pass", False),
        ("def inner():\n    assert x", False),
        ("assert x == 1", True),
        ("for part in x:\n    assert part == 1", True),
        ("with torch.no_grad():\n    assert x == 1", True),
        ("with pytest.raises(ValueError):\n    x()", True),
        ("torch.testing.assert_close(x, y)", True),
        ("run_case(c, device)", True),
    ],
)
def test_what_counts_as_an_assertion(body: str, proves: bool) -> None:
    assert asserts(ast.parse(body).body) == proves


@pytest.mark.parametrize("leave", [pytest.skip, pytest.xfail])
def test_a_proof_that_does_not_run_fails(
    leave: Callable[[str], Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(call: Callable[[], Any]) -> str:
        info = pytest.CallInfo.from_call(call, "call")
        return request.node.ihook.pytest_runtest_makereport(item=request.node, call=info).outcome

    assert outcome(lambda: leave("not here")) == "skipped"
    monkeypatch.setattr(pages, "PROOFS", {(request.path, "test_a_proof_that_does_not_run_fails"): "corners"})
    assert outcome(lambda: leave("not here")) == "failed"
    assert outcome(lambda: None) == "passed"
