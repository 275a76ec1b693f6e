"""Programs with transforms, run by torch and by us: values, first and second derivatives held side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tracer
from ops_registry.torch_private import tree_leaves

Program = Callable[..., Any]


def native_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of torch's own autograd."""
    return tensor.detach().clone().requires_grad_()


def tracked_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tracked leaf."""
    return tracer.tensor(tensor, requires_grad=True)


def derivatives(program: Program, tensors: tuple[torch.Tensor, ...], leaf: Callable[..., Any], order: int) -> list[Any]:
    """The results of ``program``, the derivatives of a weighted sum of them by ``.backward()``, and the second ones."""
    leaves = [leaf(t) for t in tensors]
    results = [r for r in tree_leaves(program(*leaves)) if isinstance(r, torch.Tensor)]
    found = [r.detach() for r in results]
    # The second term keeps the loss differentiable: a history that was lost in silence shows as a zero.
    loss = sum(weighted(r) for r in results) + sum(0 * x.sum() for x in leaves)
    first = torch.autograd.grad(loss, leaves, create_graph=order > 1, retain_graph=True)
    found += [g.detach() for g in first]
    if order > 1:
        second = sum((g * g).sum() for g in first) + sum(0 * x.sum() for x in leaves)
        found += [g.detach() for g in torch.autograd.grad(second, leaves, retain_graph=True)]
    loss.backward()
    return [*found, *[x.grad.detach() for x in leaves]]


def weighted(result: torch.Tensor) -> torch.Tensor:
    """The sum of a result's elements, each with another weight."""
    weights = torch.linspace(0.5, 1.5, max(1, result.numel()), dtype=result.dtype)[: result.numel()]
    return (result * weights.reshape(result.shape)).sum()


def assert_as_torch(program: Program, *tensors: torch.Tensor, order: int = 2, native: Program | None = None) -> None:
    """Hold ``program`` on tracked leaves against torch's own engine; ``native`` where torch needs it written otherwise."""
    expected = derivatives(native or program, tensors, native_leaf, order)
    found = derivatives(program, tensors, tracked_leaf, order)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        torch.testing.assert_close(ours.as_subclass(torch.Tensor), theirs, rtol=1e-8, atol=1e-9)
