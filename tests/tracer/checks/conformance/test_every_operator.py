"""Operators of torch's own database through tracked tensors, a small sample of each; the lists of tiers and of known gaps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracer.checks.conformance.accuracy import HALF, LIMIT, check_accuracy
from tracer.checks.conformance.check import Job, check_op
from tracer.checks.conformance.command import KNOWN_GAPS, judge, read_gaps
from tracer.checks.conformance.operators import applies, load_ops, tiers

CHUNKS = 24

#: The ways in which the command calls an operator.
MODES: dict[str, dict[str, Any]] = {
    "all leaves": {},
    "one leaf": {"leaves": "one"},
    "not contiguous": {"noncontiguous": True},
}


@pytest.fixture(scope="module")
def op_db() -> dict[str, Any]:
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    return load_ops()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("how", MODES)
def test_values_and_gradients_of_a_few_samples_of_every_operator_are_those_of_torch(
    how: str, chunk: int, op_db: dict[str, Any]
) -> None:
    gaps = read_gaps(KNOWN_GAPS, MODES[how].get("leaves", "all"))
    mine = [name for name, op in op_db.items() if applies(op, "float64", 1, "cpu")][chunk::CHUNKS]
    outcomes = [check_op(Job(name, samples=2, **MODES[how])) for name in mine]
    # Two samples need not be enough to show a gap; the command checks that each of them is still there.
    unexpected = judge(outcomes, gaps).unexpected
    assert {o.op: [f.cause for f in o.failures] for o in unexpected} == {}


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_gradients_of_a_sample_of_every_operator_are_as_exact_as_those_of_torch_in_half_precision(
    chunk: int, op_db: dict[str, Any]
) -> None:
    dtype = HALF[chunk % len(HALF)]  # the command takes each operator in both
    mine = [name for name, op in op_db.items() if applies(op, dtype, 1, "cpu")][chunk::CHUNKS]
    outcomes = [check_accuracy(Job(name, dtype, samples=1)) for name in mine]
    assert {o.op: (o.ratio, o.where) for o in outcomes if o.ratio > LIMIT} == {}


def test_every_known_gap_names_an_operator_that_can_be_run(op_db: dict[str, Any]) -> None:
    for name, dtype, order in read_gaps(KNOWN_GAPS):
        assert applies(op_db[name], dtype, order, "cpu"), name


def test_every_known_gap_has_a_reason() -> None:
    assert [g.key for g in read_gaps(KNOWN_GAPS).values() if len(g.reason) < 10] == []


def test_each_operator_is_in_one_tier() -> None:
    sorting = json.loads((KNOWN_GAPS.parent / "op_tiers.json").read_text())
    assert sorted(sorting) == ["A", "B", "C", "D"]
    assert sum(map(len, sorting.values())) == len(tiers())
