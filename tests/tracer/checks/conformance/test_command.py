"""The command: its exit status, what it writes, hangs and crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracer.checks.conformance.command import Gap, main, read_gaps


def command(tmp_path: Path, source: str, *options: str, gaps: tuple[dict[str, Any], ...] = ()) -> tuple[int, Any]:
    """Run it on a list of fake operators; the exit status and what it wrote."""
    listed, written = tmp_path / "gaps.json", tmp_path / "out.json"
    listed.write_text(json.dumps(gaps))
    arguments = ["--source", f"support.fake_ops:{source}", "--gaps", str(listed), "--json", str(written), "--jobs", "0"]
    status = main([*arguments, *options])
    return status, json.loads(written.read_text()) if written.exists() else None


def gap(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "variant": "", "dtype": "float64", "order": 1, "reason": "for the test", **fields}


def test_it_exits_with_zero_when_everything_passes(tmp_path: Path) -> None:
    assert command(tmp_path, "GOOD_ONES")[0] == 0


def test_a_failing_operator_makes_it_exit_non_zero(tmp_path: Path) -> None:
    status, written = command(tmp_path, "WITH_A_WRONG_ONE")
    assert (status, written["unexpected"]) == (1, ["wrong"])


def test_a_known_gap_that_fails_does_not(tmp_path: Path) -> None:
    status, written = command(tmp_path, "WITH_A_WRONG_ONE", gaps=(gap("wrong"),))
    assert (status, written["known"]) == (0, ["wrong"])


def test_a_known_gap_that_fails_for_another_cause_does(tmp_path: Path) -> None:
    assert command(tmp_path, "WITH_A_WRONG_ONE", gaps=(gap("wrong", causes=["Crash"]),))[0] == 1


def test_a_known_gap_covers_its_own_dtype_and_order_only(tmp_path: Path) -> None:
    assert command(tmp_path, "WITH_A_WRONG_ONE", "--order", "2", gaps=(gap("wrong"),))[0] == 1
    assert command(tmp_path, "WITH_A_WRONG_ONE", gaps=(gap("wrong", dtype="float32"),))[0] == 1


def test_a_known_gap_that_passes_makes_it_exit_non_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, written = command(tmp_path, "GOOD_ONES", gaps=(gap("other", variant="variant"),))
    assert (status, [g["op"] for g in written["closed"]]) == (1, ["other"])
    assert "other.variant float64, order 1: for the test" in capsys.readouterr().out


def test_a_known_gap_that_could_not_be_tested_proves_nothing(tmp_path: Path) -> None:
    assert command(tmp_path, "WITH_A_REFUSED_ONE", gaps=(gap("refused"),))[0] == 0


def test_only_the_operators_asked_for_are_run(tmp_path: Path) -> None:
    _, written = command(tmp_path, "ALL", "--ops", "^good|other")
    assert [o["op"] for o in written["ops"]] == ["good", "other.variant"]


def test_samples_can_be_limited(tmp_path: Path) -> None:
    _, written = command(tmp_path, "GOOD_ONES", "--samples", "1")
    assert [o["samples"] for o in written["ops"]] == [1, 1]


def test_options_that_no_operator_fits_are_an_error_of_their_own(tmp_path: Path) -> None:
    assert command(tmp_path, "GOOD_ONES", "--dtype", "bfloat16") == (2, None)


def test_the_same_gap_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "gaps.json"
    path.write_text(json.dumps([gap("wrong"), gap("wrong")]))
    with pytest.raises(ValueError, match="twice"):
        read_gaps(path)


def test_the_key_of_a_gap_is_the_operator_with_its_variant() -> None:
    assert Gap("other", "variant", "float64", 2, "").key == ("other.variant", "float64", 2)


def test_a_hang_is_cut_off_and_a_crash_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, written = command(tmp_path, "ALL", "--jobs", "2", "--timeout", "3")
    causes = {o["op"]: [f["cause"] for f in o["failures"]] for o in written["ops"]}
    assert status == 1
    assert causes == {
        "hanging": ["Timeout: not done after 3 seconds"],
        "crashing": ["Crash: the process ended with exit code 7"],
        "raising": ["ValueError: no tracked tensors, please"],
        "wrong": ["result: values differ"],
        "good": [],
        "other.variant": [],
        "refused": [],
    }
    shown = capsys.readouterr()
    assert "2/6" in shown.out
    assert "[7/7]" in shown.err
    assert "Nothing to compare" in shown.out
