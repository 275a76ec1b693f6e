"""A path without a derivative never yields a number: integer, bool and constant results, ops declared to have no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ops_registry
import tracer
from ops_registry.registry import TABLE
from ops_registry.torch_private import tree_unflatten
from tracer.checks.conformance.operators import operators, ways
from tracer.checks.conformance.samples import OpSample, first_samples, seed_call
from tracer.checks.kept_bytes import subsets
from tracer.checks.leaves import can_have_gradient, leaves_of, native_leaf, tensors_of, tracked_leaf
from tracer.errors import NoHistoryError

CHUNKS = 4


@pytest.fixture(scope="module")
def op_db() -> dict[str, Any]:
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    return operators()


def check_dead_end(result: torch.Tensor, source: torch.Tensor, what: str) -> None:
    """No gradient reaches ``source`` through ``result``, nor through a floating tensor that is made from it."""
    assert not result.requires_grad, what
    if result.layout is not torch.strided:
        return
    other = tracer.tensor(1.0, dtype=torch.float64, requires_grad=True)
    floating = result.to(torch.complex128 if result.is_complex() else torch.float64) * 2
    for tensor in (result, floating):
        assert not tensor.requires_grad, what
        with pytest.raises(NoHistoryError):
            tracer.backward([tensor], [torch.ones_like(tensor)])
        with pytest.raises(NoHistoryError):
            tracer.grad([tensor], [source], [torch.ones_like(tensor)], allow_unused=True)
    # What is mixed with something else has a gradient by that alone.
    (by_source, by_other) = torch.autograd.grad((floating * other).sum().abs(), [source, other], allow_unused=True)
    assert by_source is None, what
    assert by_other is not None, what


# ---------------------------------------------------------------------------------------------- the operator database
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_results_that_require_grad_are_those_of_torch(chunk: int, op_db: dict[str, Any]) -> None:
    compared = 0
    for name in sorted(op_db)[chunk::CHUNKS]:
        for sample in first_samples(op_db[name], 3):
            for subset in subsets([i for i, v in enumerate(sample.leaves) if can_have_gradient(v)]):
                compared += compare_results(name, op_db[name], sample, subset)
    assert compared > 500


def compare_results(name: str, op: Any, sample: OpSample, subset: tuple[int, ...]) -> bool:
    """One call here and in torch; False where torch refuses it."""
    results = []
    for leaf in (native_leaf, tracked_leaf):
        leaves = leaves_of(sample.leaves, subset, leaf)
        arguments, keywords = tree_unflatten(leaves, sample.spec)
        seed_call()
        try:
            results.append(tensors_of(ways(op)[0](arguments, keywords)))
        except Exception:
            return False  # who refuses what is for the conformance command
    theirs, ours = results
    what = f"{name} of ({sample.text}), gradients of {subset}"
    assert [t.requires_grad for t in ours] == [t.requires_grad for t in theirs], what
    source = next(leaves[i] for i in subset)
    for result in ours:
        if not can_have_gradient(result):
            check_dead_end(result, source, what)
    return True


# ---------------------------------------------------------------------------------------------- ops without a gradient
#: What is tried as arguments, ``x`` a matrix of numbers between 0 and 1: the ops that take no other are all called by one of these.
COMMON: list[Callable[[torch.Tensor], tuple[Any, ...]]] = [
    lambda x: (x,),
    lambda x: (x[0],),
    lambda x: (x[0, 0],),
    lambda x: (x, x),
    lambda x: (x, 0),
    lambda x: (x, (2, 2)),
    lambda x: (x, 2, 5),
    lambda x: (x, (2, 2), (2, 1)),
    lambda x: (x, (2, 2), 1.0),
    lambda x: (x, torch.int64),
    lambda x: (x, x[0].detach().sort()[0]),
    lambda x: (x[0].sort()[0], x),
    lambda x: (x.long(), x.long()),
    lambda x: (x.long(),),
    lambda x: (x.detach().to_sparse(),),
    lambda x: (x.detach().to_sparse_csr(),),
    lambda x: (x.detach().to_sparse_csc(),),
]


#: Attributes that hand out another tensor, which has its own history.
OTHER_TENSORS = {"_base", "_grad"}


def no_gradient_ops() -> list[str]:
    return [i.op for i in ops_registry.list_rules() if i.kind == "no gradient" and i.op not in OTHER_TENSORS]


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether torch has a gradient for it: what ``randint_like`` gives requires grad in torch, and fails in backward."""
    return tensor.requires_grad and "NotImplemented" not in str(tensor.grad_fn)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", no_gradient_ops())
def test_no_spelling_of_an_op_without_a_gradient_gives_one(name: str) -> None:
    called = 0
    for function, spelling in TABLE.items():
        if spelling.rule.name != name or spelling.inplace or spelling.choose is not None:
            continue
        for arguments in COMMON:
            x = tracer.track(torch.tensor([[0.25, 0.75], [0.5, 0.1]], dtype=torch.float64), True)
            native = torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True)
            given = arguments(x)
            try:
                theirs = function(*arguments(native))
            except Exception:
                continue  # not the arguments for this one
            results = tensors_of(function(*given))
            called += 1
            assert [t.requires_grad for t in results] == [has_gradient(t) for t in tensors_of(theirs)]
            for result in results:
                check_dead_end(result, x, name)
    assert called


# ---------------------------------------------------------------------------------------------- what is made of such a result
@pytest.mark.parametrize(
    "path",
    [
        lambda x: x.argmax(),
        lambda x: x.argsort(),
        lambda x: x.sort()[1],
        lambda x: x.max(0)[1],
        lambda x: x.topk(2)[1],
        lambda x: x.mode()[1],
        lambda x: x > 0.3,
        lambda x: x.long(),
        lambda x: x.to(torch.int32),
        lambda x: x.bool(),
        lambda x: x.nonzero(),
        lambda x: torch.unique(x, return_inverse=True)[1],
        lambda x: x.isnan(),
        lambda x: torch.ones_like(x),
        lambda x: x.new_full((2,), 3.0),
        lambda x: x.detach(),
    ],
)
def test_numbers_made_of_what_has_no_derivative_have_none(path: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = tracer.tensor([0.25, 0.75, 0.5], dtype=torch.float64, requires_grad=True)
    check_dead_end(path(x), x, "")


def test_an_index_computed_from_a_tensor_gives_it_no_gradient() -> None:
    x = tracer.tensor([0.25, 0.75, 0.5], dtype=torch.float64, requires_grad=True)
    table = tracer.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    by_x, by_table = torch.autograd.grad(table[x.argsort()][0], [x, table], allow_unused=True)
    assert by_x is None
    assert by_table.tolist() == [1, 0, 0]


def test_a_mask_computed_from_a_tensor_gives_it_no_gradient() -> None:
    x = tracer.tensor([0.25, 0.75, 0.5], dtype=torch.float64, requires_grad=True)
    masked = torch.where(x > 0.3, torch.ones(3, dtype=torch.float64), 0.0)
    check_dead_end(masked, x, "")
