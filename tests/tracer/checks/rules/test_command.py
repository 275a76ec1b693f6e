"""The command that checks every rule: what it checks, its exit status, its tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ops_registry
from tracer.checks.rules.command import KNOWN, main
from tracer.checks.rules.handmade_samples import MAKERS

pytestmark = pytest.mark.usefixtures("clean_registry")


@pytest.fixture(autouse=True)
def same_draws_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")


QUICK_RULES = "^(add|sigmoid|tanh|cumsum|amax|bmm|addcmul|logsumexp|norm.Scalar|reflection_pad1d|conv_tbc|_prelu_kernel|eq|std.dim)$"


def test_the_sweep_checks_what_it_is_told_to(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    written = tmp_path / "sweep.json"
    status = main(["--rules", QUICK_RULES, "--examples", "3", "--samples", "0", "--json", str(written)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "0 unchecked" in shown.splitlines()[0]
    assert written.exists()


def test_the_sweep_fails_when_a_rule_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    ops_registry.backward(torch.sin, replace=True)(lambda grad, input: grad * input)
    assert main(["--rules", "^sin$", "--examples", "5", "--samples", "0"]) == 1
    assert "the rule of sin is wrong" in capsys.readouterr().out


def test_the_sweep_of_no_rule_is_an_error_of_its_own() -> None:
    assert main(["--rules", "^no such rule$"]) == 2


def test_the_tables_name_rules_that_are_there() -> None:
    registered = {info.op for info in ops_registry.list_rules()}
    assert set(MAKERS) - registered == set()
    assert set(KNOWN) - registered == set()
