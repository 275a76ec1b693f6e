"""A compiled module beside the eager one: the same calls, the same gradients, the same buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import nn
import tracer


class Called(torch.nn.Module):
    """A linear layer and a buffer, and a forward pass that is given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("buffer", torch.tensor([0.5, -1.0, 2.0]))
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def twins(
    make: Callable[[], torch.nn.Module] | torch.nn.Module, backend: Any = "replay", **options: Any
) -> tuple[Any, torch.nn.Module]:
    """A tracked module, compiled, and an eager copy of it."""
    module = nn.track(make if isinstance(make, torch.nn.Module) else make())
    return tracer.compile(module, backend=backend, **options), copy.deepcopy(module)


def fresh(value: Any) -> Any:
    """A tensor's copy, with a history of one call if it wants a gradient; what it came from is its attribute ``source``."""
    if not isinstance(value, torch.Tensor):
        return value
    source = tracer.tensor(value.detach(), requires_grad=value.requires_grad)
    if not value.requires_grad:
        return source
    argument = source * 1
    argument.source = source
    return argument


def tensors_of(results: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def loss_of(results: Any) -> torch.Tensor:
    """A weighted sum of all results that have a history."""
    return sum(  # type: ignore[return-value]
        (r * torch.linspace(-1, 2, r.numel()).reshape(r.shape)).abs().sum()
        for r in tensors_of(results)
        if r.requires_grad
    )


def assert_same_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if b.grad is not None:
            torch.testing.assert_close(a.grad.detach(), b.grad.detach())
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def assert_same_call(
    compiled: Any,
    eager: torch.nn.Module,
    args: Sequence[Any],
    loss: Callable[[Any], torch.Tensor] = loss_of,
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """One call of each on copies of ``args``, and one backward pass: results, gradients and buffers are equal. Returns what came out."""
    found = []
    for module in (compiled, eager):
        torch.manual_seed(1)
        given = [fresh(value) for value in args]
        results = module(*given, **(kwargs or {}))
        total = loss(results)
        if isinstance(total, torch.Tensor) and total.requires_grad:
            total.backward()
        found.append((results, given))
    (results, given), (expected, theirs) = found
    for a, b in zip(tree_leaves(results), tree_leaves(expected), strict=True):
        assert type(a) is type(b)
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        torch.testing.assert_close(a.detach(), b.detach())
        assert a.requires_grad == b.requires_grad
        assert a.stride() == b.stride()
    for a, b in zip(given, theirs, strict=True):
        if isinstance(b, torch.Tensor) and b.requires_grad:
            assert (a.source.grad is None) == (b.source.grad is None)
            if b.source.grad is not None:
                torch.testing.assert_close(a.source.grad, b.source.grad)
        elif isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
    assert_same_gradients(compiled, eager)
    return results
