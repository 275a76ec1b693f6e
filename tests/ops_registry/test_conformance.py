"""Operators of torch's own database through tracked tensors, a small sample of each; and the command that runs the whole of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import fake_ops

from tracer.checks.conformance.command import KNOWN_GAPS, Gap, judge, main, read_gaps
from tracer.checks.conformance.operators import OP_DB, Job, Outcome, applies, compare, load_ops, run, tiers, ways
from tracer.checks.derivatives import Derivatives, twin

CHUNKS = 24


# ---------------------------------------------------------------------------------------------- the operators
@pytest.fixture(scope="module")
def op_db() -> dict[str, Any]:
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    return load_ops(OP_DB)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_gradients_of_a_few_samples_of_every_operator_are_those_of_torch(chunk: int, op_db: dict[str, Any]) -> None:
    gaps = read_gaps(KNOWN_GAPS)
    mine = [name for name, op in op_db.items() if applies(op, "float64", 1, "cpu")][chunk::CHUNKS]
    outcomes = [run(Job(name, samples=2)) for name in mine]
    # Two samples need not be enough to show a gap; the command checks that each of them is still there.
    unexpected = judge(outcomes, gaps).unexpected
    assert {o.op: [f.cause for f in o.failures] for o in unexpected} == {}


def test_every_known_gap_names_an_operator_that_can_be_run(op_db: dict[str, Any]) -> None:
    for name, dtype, order in read_gaps(KNOWN_GAPS):
        assert applies(op_db[name], dtype, order, "cpu"), name


def test_every_known_gap_has_a_reason() -> None:
    assert [g.key for g in read_gaps(KNOWN_GAPS).values() if len(g.reason) < 10] == []


def test_each_operator_is_in_one_tier() -> None:
    sorting = json.loads((KNOWN_GAPS.parent / "op_tiers.json").read_text())
    assert sorted(sorting) == ["A", "B", "C", "D"]
    assert sum(map(len, sorting.values())) == len(tiers())


# ---------------------------------------------------------------------------------------------- one operator
def fake(name: str, order: int = 1) -> Outcome:
    return run(Job(name, order=order, source="support.fake_ops:ALL"))


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
    assert compare(_derivatives(**{field: [ones]}), _derivatives(**{field: [twos]})) == f"{what}: values differ"


def test_no_gradient_and_a_gradient_of_zero_are_the_same() -> None:
    zeros = torch.zeros(2)
    assert compare(_derivatives(first=[None, zeros, None]), _derivatives(first=[zeros, None, None])) == ""


def test_a_result_that_should_not_require_grad_is_found() -> None:
    found = compare(_derivatives(requires_grad=[True]), _derivatives(requires_grad=[False]))
    assert found.startswith("requires_grad of the results")


def test_nan_differs_from_a_number_and_not_from_nan() -> None:
    nan, one = torch.full((1,), torch.nan), torch.ones(1)
    assert compare(_derivatives(first=[nan]), _derivatives(first=[one])) == "first derivative: nan where torch has none"
    assert (
        compare(_derivatives(first=[one]), _derivatives(first=[nan])) == "first derivative: no nan where torch has one"
    )
    assert compare(_derivatives(first=[nan]), _derivatives(first=[nan])) == ""


def _derivatives(**fields: Any) -> Any:
    empty: dict[str, Any] = {"outputs": [], "requires_grad": [], "first": [], "second": [], "arguments": []}
    return Derivatives(**{**empty, **fields})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(10.0)[1::2],
        torch.arange(3.0).expand(2, 3),
        torch.rand(2, 3).t(),
        torch.rand(2, dtype=torch.complex64).conj(),
        torch.empty(0, 3),
        torch.tensor(1.0),
    ],
    ids=["gaps", "expanded", "transposed", "conjugate", "empty", "0-d"],
)
def test_a_copy_lies_in_memory_as_the_original(tensor: torch.Tensor) -> None:
    copy = twin(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


# ---------------------------------------------------------------------------------------------- the command
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
