"""One operator, called in every spelling on every sample, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import fake_ops

from tracer.checks.conformance.check import Job, OpOutcome, check_op, difference_between
from tracer.checks.conformance.operators import ways
from tracer.checks.derivatives import Derivatives


def fake(name: str, order: int = 1) -> OpOutcome:
    return check_op(Job(name, order=order, source="support.fake_ops:ALL"))


def test_every_spelling_runs_on_every_sample() -> None:
    outcome = fake("good")
    assert (outcome.status, outcome.samples, outcome.checks) == ("passed", 2, 6)
    assert outcome.spellings == ["function", "method", "in-place"]


def test_a_spelling_that_is_the_same_function_again_runs_once() -> None:
    op = fake_ops.FakeOp("twice", torch.Tensor.sin, torch.Tensor.sin)
    assert [way.name for way in ways(op)] == ["function"]


@pytest.mark.parametrize("order", [1, 2])
def test_a_wrong_value_is_a_failure_that_tells_where(order: int) -> None:
    [failure] = fake("wrong", order).failures
    assert (failure.cause, failure.spelling, failure.sample) == ("result: values differ", "function", 0)
    assert (failure.example, failure.count) == ("float64[3]", 2)


def test_failures_of_one_error_are_one_cause_whatever_stands_in_brackets() -> None:
    [failure] = fake("raising").failures
    assert failure.cause == "ValueError: no tracked tensors, please"
    assert failure.count == 2


def test_samples_that_torch_refuses_are_counted_and_prove_nothing() -> None:
    outcome = fake("refused")
    assert (outcome.status, outcome.skipped, outcome.checks) == ("untested", 2, 0)


@pytest.mark.parametrize(
    ("what", "field"),
    [("first derivative", "first"), ("second derivative", "second"), ("argument afterwards", "arguments")],
)
def test_a_difference_anywhere_is_found(what: str, field: str) -> None:
    ones, twos = torch.ones(2, dtype=torch.float64), torch.full((2,), 2.0, dtype=torch.float64)
    assert (
        difference_between(_derivatives(**{field: [ones]}), _derivatives(**{field: [twos]})) == f"{what}: values differ"
    )


def test_no_gradient_and_a_gradient_of_zero_are_the_same() -> None:
    zeros = torch.zeros(2)
    assert difference_between(_derivatives(first=[None, zeros, None]), _derivatives(first=[zeros, None, None])) == ""


def test_a_result_that_should_not_require_grad_is_found() -> None:
    found = difference_between(_derivatives(requires_grad=[True]), _derivatives(requires_grad=[False]))
    assert found.startswith("requires_grad of the results")


def test_nan_differs_from_a_number_and_not_from_nan() -> None:
    nan, one = torch.full((1,), torch.nan), torch.ones(1)
    assert (
        difference_between(_derivatives(first=[nan]), _derivatives(first=[one]))
        == "first derivative: nan where torch has none"
    )
    assert (
        difference_between(_derivatives(first=[one]), _derivatives(first=[nan]))
        == "first derivative: no nan where torch has one"
    )
    assert difference_between(_derivatives(first=[nan]), _derivatives(first=[nan])) == ""


def _derivatives(**fields: Any) -> Any:
    empty: dict[str, Any] = {"outputs": [], "requires_grad": [], "first": [], "second": [], "arguments": []}
    return Derivatives(**{**empty, **fields})


def test_a_value_off_by_one_rounding_is_a_failure() -> None:
    [failure] = check_op(Job("rounded", source="support.fake_ops:EXACT")).failures
    assert failure.cause == "result: values differ"


def test_one_leaf_at_a_time_is_one_comparison_a_leaf() -> None:
    source = "support.fake_ops:PAIRS"
    outcomes = [check_op(Job("product", source=source, leaves=leaves)) for leaves in ("all", "one")]
    assert [(o.status, o.checks) for o in outcomes] == [("passed", 1), ("passed", 2)]


def test_with_one_leaf_the_rest_is_plain() -> None:
    source = "support.fake_ops:PAIRS"
    assert check_op(Job("both_tracked", source=source)).status == "passed"
    [failure] = check_op(Job("both_tracked", source=source, leaves="one")).failures
    assert (failure.cause, failure.count) == ("result: values differ", 2)


def test_noncontiguous_puts_nan_into_the_gaps_of_every_tensor() -> None:
    source = "support.fake_ops:EXACT"
    assert check_op(Job("by_address", source=source)).status == "passed"
    [failure] = check_op(Job("by_address", source=source, noncontiguous=True)).failures
    assert failure.cause == "result: nan where torch has none"
