"""Samples of the operator database as training steps: what they are called with, what they give, how that differs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.torch_private import tree_unflatten
from tracer.checks.conformance.operators import Way
from tracer.checks.conformance.samples import OpSample
from tracer.checks.leaves import can_have_gradient, plain, requiring_grad, tensors_of, tracked_leaf, twin
from tracer.checks.tolerances import database_tolerance

#: What a step gives: its results, the gradients of its inputs, its inputs as the step leaves them.
Given = list[torch.Tensor | None]


@dataclass
class Step:
    """One sample as a training step: the operator, then a backward pass from everything that requires grad."""

    way: Way
    sample: OpSample

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """``tensors`` take the places of the sample's. Returns the results of the operator."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(v, torch.Tensor) else v for v in self.sample.leaves]
        arguments, keywords = tree_unflatten(leaves, self.sample.spec)
        results = tensors_of(self.sample.process(self.way(arguments, keywords)))
        wanted = requiring_grad(results)
        if wanted:
            torch.autograd.backward(wanted, [cotangent_of(result) for result in wanted])
        return results

    def inputs(self, other: bool) -> list[torch.Tensor]:
        """Fresh tensors, tracked where a gradient is wanted; with ``other`` other values."""
        made: dict[int, torch.Tensor] = {}
        for leaf in self.sample.leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in made:
                copied = twin(leaf)
                if other and leaf.layout is torch.strided:
                    copied = changed(copied)
                able = can_have_gradient(leaf) and leaf.requires_grad
                made[id(leaf)] = tracked_leaf(copied, True) if able else copied
        return [made[id(leaf)] for leaf in self.sample.leaves if isinstance(leaf, torch.Tensor)]


class Joined:
    """Several steps as one, one after another: one graph for a compiler."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.counts = [len(step.inputs(False)) for step in steps]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """``tensors`` are the inputs of all steps, in order. Returns all results."""
        given = iter(tensors)
        return [
            result
            for step, count in zip(self.steps, self.counts, strict=True)
            for result in step(*itertools.islice(given, count))
        ]

    def inputs(self, other: bool) -> list[torch.Tensor]:
        """As those of the steps."""
        return [tensor for step in self.steps for tensor in step.inputs(other)]


def changed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values in another order, so that they stay in the domain of the operator; one alone is made smaller."""
    if tensor.numel() > 1:
        return tensor.copy_(tensor.clone().roll(1))
    return tensor.mul_(0.75) if can_have_gradient(tensor) else tensor


def cotangent_of(result: torch.Tensor) -> torch.Tensor:
    """A cotangent whose elements differ. None drawn at random: that would be a part of the step."""
    numbers = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape).sin() + 0.5
    wide = torch.complex(numbers, 1 - numbers) if result.is_complex() else numbers
    return wide.to(result.dtype)


def given_by(step: Callable[..., Any], inputs: Sequence[torch.Tensor], seed: int = 0) -> Given:
    """What one call gives, as plain tensors."""
    torch.default_generator.manual_seed(seed)
    results = step(*inputs)
    return [None if t is None else plain(t).clone() for t in (*results, *(t.grad for t in inputs), *inputs)]


def differ(ours: Given, theirs: Given) -> str | None:
    """How two lists of tensors differ, to the tolerance of the database."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results and {len(theirs)}"
    for position, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a is None or b is None:
            if a is not b:
                return f"tensor {position} is missing on one side"
        elif a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
            return f"tensor {position}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        else:
            rtol, atol = database_tolerance(b)
            if not torch.allclose(a.to_dense(), b.to_dense(), rtol=rtol, atol=atol, equal_nan=True):
                return f"tensor {position}: {a.flatten()[:3].tolist()} and {b.flatten()[:3].tolist()}"
    return None


@contextmanager
def unseeded(function: Callable[..., Any]) -> Iterator[None]:
    """The database seeds the random numbers in front of an operator that draws some; here the operator is called alone.

    A step that seeds is refused, and nothing would be held of these operators.
    """
    names = getattr(function, "__globals__", {})
    seeded = names.get("wrapper_set_seed")
    if seeded is None:
        yield
        return
    names["wrapper_set_seed"] = lambda op, *args, **kwargs: op(*args, **kwargs)
    try:
        yield
    finally:
        names["wrapper_set_seed"] = seeded
