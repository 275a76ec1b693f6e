"""``check_rule`` over every registered rule, with few examples each; ``python -m tracer.checks.rules`` is the long form."""

from __future__ import annotations

import pytest

from tracer.checks.rules.command import main


@pytest.mark.slow
@pytest.mark.parametrize("names", ["^[a-k]", "^[l-n_]", "^[^a-n_]"])
def test_no_rule_is_wrong_that_is_not_known_to_be(
    names: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")  # every run draws the same
    status = main(["--rules", names, "--examples", "2", "--samples", "1"])
    assert status == 0, capsys.readouterr().out
