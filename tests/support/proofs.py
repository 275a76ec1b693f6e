"""The rows of pages whose every line is proved by a test (``docs/corners.md``, ``docs/borders.md``), and the tests that they name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: The pages, by the names of their files.
PAGES = {name: (TESTS.parent / "docs" / f"{name}.md").read_text() for name in ("corners", "borders")}


def rows(page: str) -> list[str]:
    """The body rows of all tables of a page."""
    return [
        line for table in re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE) for line in table.splitlines()
    ]


#: Page and row.
ROWS = [(name, row) for name, page in PAGES.items() for row in rows(page)]


def proofs(row: str) -> list[tuple[Path, str]]:
    """The file and the name of each test that the last column names."""
    named = [proof.partition("::") for proof in re.findall(r"`([^`]+)`", row.split("|")[-2])]
    return [(TESTS / re.sub("^rules/", "ops_registry/rules/", file), name) for file, _, name in named]


#: All of them, with the page that names them.
PROOFS = {proof: name for name, row in ROWS for proof in proofs(row)}


def fail_unless_run(report: pytest.TestReport, path: Path, name: str) -> None:
    """A proof that was skipped, or was expected to fail, proves nothing: its report says failed."""
    if report.skipped and (path, name) in PROOFS:
        report.outcome = "failed"
        report.longrepr = f"docs/{PROOFS[path, name]}.md names {name} as a proof, and it did not run: {report.longrepr}"


#: Calls that raise where something is not as it should be, beside those whose name starts with ``assert_``.
CHECKS = {"raises", "warns", "run_case", "check_differences"}


def asserts(body: list[ast.stmt]) -> bool:
    """Whether these statements compare something under no condition; a loop is taken to run at least once."""
    for statement in body:
        if isinstance(statement, ast.Assert):
            if any(isinstance(node, ast.Name) for node in ast.walk(statement.test)):
                return True
        elif isinstance(statement, ast.With):
            if any(_is_check(item.context_expr) for item in statement.items) or asserts(statement.body):
                return True
        elif isinstance(statement, ast.For):
            if asserts(statement.body):
                return True
        elif isinstance(statement, ast.Expr) and _is_check(statement.value):
            return True
    return False


def _is_check(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    name = ast.unparse(call.func).split(".")[-1]
    return name in CHECKS or name.startswith("assert_")
