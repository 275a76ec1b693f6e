"""Compiled steps over torch's operator database: one sample of every operator here, more by ``python -m tracer.checks.compiled_steps``."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from tracer.checks.compiled_steps.check import Job, applies, check_op, load
from tracer.checks.compiled_steps.command import report
from tracer.checks.compiled_steps.steps import differ, unseeded


def names(pattern: str) -> list[str]:
    return [name for name, op in load().items() if re.search(pattern, name) and applies(op, torch.float64)]


@pytest.mark.slow
@pytest.mark.parametrize("first_letters", ["[a-e]", "[f-m]", "n", "[_o-z]"])
def test_every_sample_is_equal_or_refused_by_name(first_letters: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = [check_op(Job(name, samples=1)) for name in names(f"^{first_letters}")]
    assert sum(outcome.counts["equal"] for outcome in outcomes) > 30
    assert report(outcomes) == 0, capsys.readouterr().out


def test_a_wrong_step_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    first = torch.ones(3)
    assert differ([first], [first + 1e-3]) is not None
    assert differ([first], [None]) is not None
    monkeypatch.setattr(
        "tracer.checks.compiled_steps.check.compile",
        lambda step, backend: lambda *tensors: [t * 2 for t in step(*tensors)],
    )
    outcome = check_op(Job("sin", samples=1))
    assert outcome.counts["failed"] > 0
    assert not outcome.counts["equal"]
    assert report([outcome]) == 1


def test_operators_that_draw_are_called_without_the_seed_of_the_database() -> None:
    function = load()["bernoulli"].get_op()
    p = torch.full((50,), 0.5)
    with unseeded(function):
        assert not torch.equal(function(p), function(p))
    assert torch.equal(function(p), function(p))
