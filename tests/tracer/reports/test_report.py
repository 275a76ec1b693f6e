"""What all reports have in common."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from ops_registry.sites import find_site
from tracer.reports.report import Report, Row, aligned, as_plain, as_text


@dataclass
class Counted(Row):
    columns: ClassVar[tuple[str, ...]] = ("name", "count")
    name: str
    count: int


class Counting(Report):
    columns = Counted.columns


def test_the_text_is_verdict_evidence_and_fix() -> None:
    report = Counting("Two kinds.", [Counted("apples", 12), Counted("figs", 3)], "Eat them.")
    assert str(report) == "Two kinds.\n  name    count\n  apples     12\n  figs        3\nEat them."


def test_a_report_without_rows_is_its_verdict() -> None:
    assert str(Counting("Nothing.")) == "Nothing."


def test_the_dictionary_goes_through_json() -> None:
    report = Counting("One.", [Counted("figs", 3)])
    assert json.loads(json.dumps(report.to_dict())) == {
        "report": "counting",
        "verdict": "One.",
        "rows": [{"name": "figs", "count": 3}],
        "fix": "",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.123456, "0.1235"),
        (12, "12"),
        (torch.tensor([3.0, 4.0]), "|5| [2]"),
        (torch.tensor([3.0, 4.0], dtype=torch.bfloat16), "|5| [2]"),
        (torch.tensor([3 + 4j]), "|5| [1]"),
        (torch.tensor([0.0, 3.0]).to_sparse(), "|3| [2]"),
        ([1, 2], "1, 2"),
    ],
)
def test_values_as_they_stand_in_a_table(value: object, text: str) -> None:
    assert as_text(value) == text


def test_a_site_is_its_place() -> None:
    site = find_site("exp", 1)
    assert as_text(site).startswith("test_report.py:")
    assert as_plain(site) == {"op": "exp", "module": "", "line": site.line}


def test_a_column_of_numbers_stands_to_the_right() -> None:
    assert aligned(("a", "b"), [("x", "1"), ("yy", "1,000")]).splitlines()[1] == "  x       1"
