"""Errors in half precision beside those of torch: what counts, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.fake_ops import HALF_PRECISION

from tracer.checks.conformance.accuracy import (
    Accuracy,
    Draws,
    accuracy_table,
    check_accuracy,
    largest_error,
    mean_error,
)
from tracer.checks.conformance.check import Job
from tracer.checks.conformance.command import main
from tracer.checks.conformance.enlarged import enlarged
from tracer.checks.conformance.samples import OpSample

SOURCE = "support.fake_ops:HALF_PRECISION"


def ratio_of(name: str) -> float:
    return check_accuracy(Job(name, "bfloat16", source=SOURCE)).ratio


def draws(ours: list[float], theirs: list[float], exact: list[float], our_exact: list[float] | None = None) -> Draws:
    made = Draws(torch.bfloat16)
    made.add(torch.tensor(ours), torch.tensor(theirs), torch.tensor(our_exact or exact), torch.tensor(exact))
    return made


def test_a_rule_that_rounds_as_torch_does_has_the_ratio_one() -> None:
    assert ratio_of("exact") == pytest.approx(1.0, abs=0.05)


def test_a_rule_that_rounds_at_each_step_is_found() -> None:
    outcome = check_accuracy(Job("rounded", "bfloat16", source=SOURCE))
    assert outcome.ratio > 1.5
    assert outcome.where.startswith("argument 0 of sample 0 (bfloat16[8, 64]")


def test_a_rule_that_raises_is_found() -> None:
    outcome = check_accuracy(Job("raising", "bfloat16", source=SOURCE))
    assert outcome.ratio == float("inf")
    assert "no tracked tensors" in outcome.where


def test_an_op_that_is_another_one_in_another_dtype_is_not_compared() -> None:
    assert check_accuracy(Job("random", "bfloat16", source=SOURCE)).checks == 0


def test_an_error_below_that_of_a_rounded_result_does_not_count() -> None:
    assert draws([1.001], [1.0], [1.0]).errors()[0] < 1.0


def test_an_error_is_a_multiple_of_that_of_torch() -> None:
    assert draws([1.3, 1.3], [1.1, 0.9], [1.0, 1.0]).errors()[0] == pytest.approx(3.0)


def test_elements_on_which_both_differ_in_float64_do_not_count() -> None:
    assert draws([0.5, 1.0], [1.0, 1.0], [1.0, 1.0], our_exact=[0.5, 1.0]).elements() == 1


def test_elements_that_torch_cannot_hold_do_not_count_and_ours_must_not_be_infinite() -> None:
    inf = float("inf")
    assert draws([inf], [inf], [1.0]).elements() == 0
    assert draws([inf], [1.0], [1.0]).errors()[0] > 1e6


def test_an_element_that_cancels_to_nothing_does_not_decide_alone() -> None:
    exact = [torch.tensor([1.0, 1.0, 1e-6])]
    found = [torch.tensor([1.0, 1.0, 1e-2])]
    assert mean_error(found, exact) < 0.01
    assert largest_error(found, exact) < 0.01 + 1e-6


def test_a_sample_is_enlarged_along_rows_and_along_both_ends() -> None:
    sample = OpSample.of(next(HALF_PRECISION[0].sample_inputs_func(HALF_PRECISION[0], "cpu", torch.bfloat16)))
    generator = torch.Generator().manual_seed(0)
    shapes = {v.name: [tuple(t.shape) for t in v.arguments(sample.leaves, generator)] for v in enlarged("op", sample)}
    assert shapes["argument 1 broadcast over 10 rows"] == [(10, 8, 64), (64,)]
    assert shapes["300 long in dimension -1"] == [(8, 320), (320,)]


def test_the_table_has_the_worst_first() -> None:
    table = accuracy_table(
        [Accuracy("good", "A", "bfloat16", 1.0, checks=3), Accuracy("bad", "A", "bfloat16", 2.0, checks=1)]
    )
    assert table.index("bad") < table.index("good")
    assert table.endswith("2 operators compared, 1 above 1.5 times torch's error.")


def test_the_command_prints_the_table_and_fails_where_a_ratio_is_too_high(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "out.json"
    options = ["--source", SOURCE, "--dtype", "bfloat16", "--accuracy", "--jobs", "0"]
    assert main([*options, "--ops", "^exact", "--json", str(written)]) == 0
    assert [o["op"] for o in json.loads(written.read_text())] == ["exact"]
    assert main([*options, "--ops", "exact|rounded"]) == 1
    assert "2 operators compared, 1 above" in capsys.readouterr().out


def test_accuracy_is_one_of_half_precision() -> None:
    with pytest.raises(SystemExit):
        main(["--accuracy"])
