"""``tracer.func.jacrev``, whose rows are swept by our own code: beside ``torch.func.jacrev`` on native tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import tracer
from tracer import func
from tracer.errors import GlassgradError

A = torch.tensor([0.5, -0.4, 0.7], dtype=torch.float64)
B = torch.tensor([[0.2, 0.9], [-0.3, 0.1]], dtype=torch.float64)
W = torch.tensor([1.5, -0.5, 0.25], dtype=torch.float64)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "a vector": lambda a, b, w: (a * w).sin(),
    "a scalar": lambda a, b, w: (a * w).sin().sum(),
    "a matrix": lambda a, b, w: (a * w).outer(a.cos()),
    "several results": lambda a, b, w: {"x": (a * w).tanh(), "y": [b.exp().sum() * w[0], b @ b * a[0]]},
    "a result that does not depend on the inputs": lambda a, b, w: (w.sin(), a * w),
    "an input passed through": lambda a, b, w: (a, b.T),
    "no element": lambda a, b, w: (a * w)[:0],
}


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 4, 100])
@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1,)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_are_torchs(name: str, argnums: Any, chunk_size: int | None) -> None:
    f = FUNCTIONS[name]
    expected = torch.func.jacrev(f, argnums)(A, B, W)
    found = func.jacrev(f, argnums, chunk_size=chunk_size)(A, B, W)
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(expected)
    for ours, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        torch.testing.assert_close(ours.detach().as_subclass(torch.Tensor), theirs)


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_a_jacobian_has_a_history_to_what_the_function_closes_over(chunk_size: int | None) -> None:
    def slope(w: torch.Tensor, names: Any) -> torch.Tensor:
        whole = names.jacrev(lambda a: ((a * w).sin(), a * w.sum()), chunk_size=chunk_size)(A)
        return sum(block.pow(2).sum() for block in whole) + 0 * w.sum()

    tracked, native = tracer.tensor(W, requires_grad=True), W.clone().requires_grad_()
    slope(tracked, func).backward()
    slope(native, torch.func).backward()
    assert tracked.grad is not None
    torch.testing.assert_close(tracked.grad, native.grad)


def test_auxiliary_results_are_handed_out() -> None:
    rows, aux = func.jacrev(lambda a: (a * a, {"cube": a**3}), has_aux=True)(A)
    torch.testing.assert_close(rows, torch.diag(2 * A), check_dtype=True)
    torch.testing.assert_close(aux["cube"].as_subclass(torch.Tensor), A**3)
    assert not rows.requires_grad and not aux["cube"].requires_grad


def test_the_function_runs_once() -> None:
    calls = []
    func.jacrev(lambda a: calls.append(1) or a.sin(), chunk_size=2)(A)
    assert len(calls) == 1


def test_rows_of_a_rule_that_decides_by_values() -> None:
    """``prod`` looks for zeros, which ``torch.vmap`` forbids."""
    x = torch.tensor([2.0, 3.0, 5.0])
    jacobian = func.jacrev(lambda a: torch.stack([a.prod(), a.sum()]))(x)
    torch.testing.assert_close(jacobian, torch.tensor([[15.0, 10.0, 6.0], [1.0, 1.0, 1.0]]))


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_torch_refuses_a_chunk_without_rows(chunk_size: int) -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        func.jacrev(torch.sin, chunk_size=chunk_size)


@pytest.mark.parametrize("f", [torch.sin, lambda a: a.to(torch.complex128)], ids=["inputs", "outputs"])
def test_complex_tensors_are_refused(f: Callable[..., torch.Tensor]) -> None:
    x = A.to(torch.complex128) if f is torch.sin else A
    with pytest.raises(RuntimeError, match=r"jacrev: Expected all .* to be real"):
        func.jacrev(f)(x)


def test_integer_results_are_refused_by_name() -> None:
    with pytest.raises(GlassgradError, match=r"jacrev\(f\)"):
        func.jacrev(lambda a: a.argmax())(A)
