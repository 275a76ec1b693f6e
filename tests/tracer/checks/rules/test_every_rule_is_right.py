"""``check_rule`` over every registered rule, with few examples each; ``python -m tracer.checks.rules`` is the long form."""

from __future__ import annotations

import pytest

from ops_registry.registry import RULES
from tracer.checks.rules.command import UNINITIALISED, harvest, is_known, outcome_of
from tracer.checks.rules.samples import Sample

#: Rules a test: so few that no worker is left with a long one when the others are done.
PIECE = 25

#: As the command sorts them, those that the project registers itself: tests register others.
NAMES = [name for name in sorted(RULES) if name not in UNINITIALISED]


@pytest.fixture(scope="module")
def harvested() -> dict[str, list[Sample]]:
    """A call of each rule from torch's operator database; gone through once, since most operators lead to rules of many pieces."""
    return harvest(NAMES, 1)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(NAMES), PIECE))
def test_no_rule_is_wrong_that_is_not_known_to_be(
    start: int, harvested: dict[str, list[Sample]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")  # every run draws the same
    outcomes = [outcome_of(name, harvested[name], 2) for name in NAMES[start : start + PIECE]]
    assert [o.message for o in outcomes if o.status == "wrong" and not is_known(o)] == []
    assert any(o.status == "right" for o in outcomes)
