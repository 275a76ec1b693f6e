"""What all reports have in common."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch

from tracer.reports.report import SHOWN, Report, Row


@dataclass(frozen=True)
class Line(Row):
    op: str
    size: float
    note: str = ""
    grad: torch.Tensor | None = field(default=None, repr=False)


def test_columns_are_aligned_and_numbers_are_flush_right() -> None:
    text = str(Report("two ops", [Line("relu", 3.0), Line("softmax", 12.5)], ["Do this."]))
    assert text.splitlines() == ["two ops", "  op       size", "  relu        3", "  softmax  12.5", "Do this."]


def test_a_column_in_which_all_is_empty_is_left_out_of_the_text_and_not_of_the_values() -> None:
    report = Report("one op", [Line("relu", 3.0)])
    assert "note" not in str(report) and report.to_dict()["columns"] == ["op", "size", "note"]


def test_json_can_write_what_it_has_no_number_for() -> None:
    report = Report("one op", [Line("relu", float("inf"), grad=torch.ones(3))])
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["rows"] == [
        {"op": "relu", "size": "inf", "note": ""}
    ]


def test_the_text_of_a_row_tells_its_columns() -> None:
    assert str(Line("relu", 0.25, "here")) == "op relu  size 0.25  note here"


def test_the_text_stops_after_some_rows_and_says_how_many_more_there_are() -> None:
    report = Report("many", [Line("relu", 1.0)] * (SHOWN + 7))
    assert len(report) == SHOWN + 7 and "and 7 more rows" in str(report) and str(report).count("relu") == SHOWN


def test_a_report_without_rows_is_an_answer() -> None:
    report: Report[Line] = Report("nothing")
    assert report and list(report) == [] and report.columns == () and str(report) == "nothing"
