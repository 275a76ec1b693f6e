"""Nothing is kept for backward that torch does not keep, and no gradient is computed that nobody wants: for every operator of torch's
database and each set of inputs that want one. ``python -m tracer.checks.kept_bytes`` is the command that runs all samples.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.formula_runs import WantedInputs, covered, watch

import tracer
from ops_registry.torch_private import tree_unflatten
from tracer.checks.conformance.operators import operators, ways
from tracer.checks.conformance.samples import OpSample, first_samples
from tracer.checks.kept_bytes import (
    SPELLINGS,
    Comparison,
    Kept,
    Reason,
    compare_operator,
    kept_by_torch,
    kept_here,
    main,
    nodes_behind,
    read_exceptions,
    subsets,
    unexplained,
)
from tracer.checks.leaves import can_have_gradient, leaves_of, random_like, requiring_grad, tracked_leaf

CHUNKS = 8
SAMPLES = 3


@pytest.fixture(scope="module")
def op_db() -> dict[str, Any]:
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    return operators()


# ---------------------------------------------------------------------------------------------- bytes
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_operator_keeps_more_than_torch_for_any_set_of_inputs(chunk: int, op_db: dict[str, Any]) -> None:
    mine = sorted(op_db)[chunk::CHUNKS]
    found = [
        c for name in mine for spelling in SPELLINGS for c in compare_operator(name, op_db[name], SAMPLES, spelling)
    ]
    assert len({c.op for c in found}) > 50
    assert unexplained(found, read_exceptions()) == []


def test_every_exception_names_an_operator_and_gives_a_reason(op_db: dict[str, Any]) -> None:
    for reason in read_exceptions():
        assert reason.op in op_db
        assert reason.subset in ("any", "part")
        assert len(reason.reason) > 40


def kept(function: Any, *tensors: torch.Tensor, wanted: tuple[int, ...] = (0,)) -> tuple[Kept, Kept]:
    """What a call keeps here and in torch."""
    ours = [tracer.track(t.clone(), i in wanted) for i, t in enumerate(tensors)]
    native = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
    return kept_here(lambda leaves: function(*leaves), ours), kept_by_torch(lambda leaves: function(*leaves), native)


def test_a_storage_counts_once_however_often_it_is_kept() -> None:
    x = torch.ones(4, dtype=torch.float64)
    assert kept(lambda a: a * a, x) == (Kept(32, 0), Kept(32, 0))
    assert kept(lambda a: a[:2] * a[2:], x) == (Kept(32, 0), Kept(32, 0))


def test_what_belongs_to_neither_argument_nor_result_is_counted_apart() -> None:
    x = torch.ones(4, dtype=torch.float64)
    assert kept(lambda a: a.exp().sum(), x) == (Kept(32, 32), Kept(32, 32))


def test_only_what_the_wanted_gradients_need_is_saved() -> None:
    x, y = torch.ones(4, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    assert kept(torch.mul, x, y, wanted=(0,))[0] == Kept(8, 0)
    assert kept(torch.mul, x, y, wanted=(1,))[0] == Kept(32, 0)


def test_what_torch_frees_during_the_call_does_not_count() -> None:
    x = torch.ones(4, dtype=torch.float64)
    assert kept(lambda a: (a.sin(), a + 1)[1], x) == (Kept(0, 0), Kept(0, 0))


def test_more_memory_of_either_kind_is_more() -> None:
    def verdict(here: Kept, theirs: Kept) -> str:
        return Comparison("op", "function", (0,), False, here, theirs, "").verdict

    assert verdict(Kept(8, 0), Kept(8, 0)) == "equal"
    assert verdict(Kept(8, 0), Kept(16, 8)) == "less"
    assert verdict(Kept(16, 0), Kept(8, 8)) == "more"
    assert verdict(Kept(8, 8), Kept(16, 0)) == "more"


def test_the_command_compares_what_it_is_told_to(
    op_db: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--ops", "^(mul|tanh)$", "--samples", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" operators")[0] for line in lines] == ["function: 2", "in-place: 2"]
    monkeypatch.setattr(Reason, "covers", lambda self, comparison: False)
    assert main(["--ops", "^einsum$"]) == 1
    assert "einsum (function), gradients of [" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- formulas
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_formula_is_run_for_an_input_that_needs_no_gradient(chunk: int, op_db: dict[str, Any]) -> None:
    checked = 0
    for name in sorted(op_db)[chunk::CHUNKS]:
        for sample in first_samples(op_db[name], 2):
            for subset in subsets([i for i, v in enumerate(sample.leaves) if can_have_gradient(v)]):
                checked += check_formulas(name, op_db[name], sample, subset)
    assert checked > 100


def check_formulas(name: str, op: Any, sample: OpSample, subset: tuple[int, ...]) -> bool:
    """Run one call forward and backward, and look at what its formulas did; False where there is nothing to run."""
    leaves = leaves_of(sample.leaves, subset, tracked_leaf)
    arguments, keywords = tree_unflatten(leaves, sample.spec)
    try:
        with WantedInputs() as wanted:
            result = ways(op)[0](arguments, keywords)
        live = requiring_grad(sample.process(result))
        nodes = nodes_behind(live)
        runs = watch(nodes)
        torch.autograd.grad(live, [leaves[i] for i in subset], random_like(live, 1), allow_unused=True)
    except Exception:  # who refuses what is for the conformance command
        return False
    where = f"{name}, gradients of {subset} of ({sample.text})"
    for node, names in wanted.found.items():
        assert covered(node) == names, where
    for run in runs:
        assert any(parent is not None for parent in run.step.parents), where
        assert run.wasted == [], f"{where}: {run.node.op} computed the gradient of {run.wasted}"
    return bool(runs)


def test_a_formula_is_run_once_for_each_input_that_wants_a_gradient() -> None:
    a, b = (tracer.tensor([2.0], requires_grad=wanted) for wanted in (True, False))
    y = a * b
    runs = watch([y.grad_fn])
    y.backward()
    assert [run.step.formula.wrt for run in runs] == [("input",)]


def test_the_inputs_named_to_grad_narrow_what_a_joint_formula_computes() -> None:
    x, w = tracer.tensor([[1.0, 2.0]], requires_grad=True), tracer.tensor([2.0, 3.0], requires_grad=True)
    y = torch.nn.functional.rms_norm(x, (2,), w)
    runs = watch([y.grad_fn])
    torch.autograd.grad(y.sum(), w)
    assert [[g is not None for g in run.result] for run in runs] == [[False, True]]
