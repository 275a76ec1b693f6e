"""The transforms over torch's operator database: one sample of every operator here, more by ``python -m tracer.checks.transforms``."""

from __future__ import annotations

import warnings

import pytest

from tracer.checks.transforms import CLAIMS, KNOWN, check, report


@pytest.mark.slow
@pytest.mark.parametrize("first_letters", ["[a-e]", "[f-m]", "n", "[_o-z]"])
def test_every_claim_holds(first_letters, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = check(f"^{first_letters}", 1)
    assert all(outcome.samples for outcome in outcomes.values())
    assert report(outcomes) == 0, capsys.readouterr().out


def test_what_is_known_names_claims_and_operators():
    assert {claim for claim, _ in KNOWN} <= set(CLAIMS)
