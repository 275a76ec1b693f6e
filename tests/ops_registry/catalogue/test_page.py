"""``docs/ops.md`` is what ``python -m ops_registry.catalogue`` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ops_registry import list_rules
from ops_registry.catalogue import page as catalogue

WRITTEN_FOR = "2.13"


@pytest.mark.skipif(
    torch.__version__.rsplit(".", 1)[0] != WRITTEN_FOR,
    reason=f"docs/ops.md is written for torch {WRITTEN_FOR}, whose functions and overloads it lists",
)
def test_the_committed_page_is_what_the_command_writes() -> None:
    # A process of its own: tests that register rules would be found on the page.
    command = [sys.executable, "-m", "ops_registry.catalogue", "--check"]
    result = subprocess.run(command, cwd=catalogue.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_check_of_an_outdated_page_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "PAGE", tmp_path / "docs" / "ops.md")
    monkeypatch.setattr(catalogue, "page", lambda: "the ops\n")
    assert catalogue.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/ops.md is out of date: run python -m ops_registry.catalogue\n"
    assert catalogue.main([]) == 0
    assert catalogue.main(["--check"]) == 0


def test_the_page_has_a_row_for_every_op() -> None:
    rows = [line.split("`")[1] for line in catalogue.page().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(info.op for info in list_rules())


def test_the_page_names_no_place_on_this_machine() -> None:
    assert str(catalogue.ROOT) not in catalogue.page()
