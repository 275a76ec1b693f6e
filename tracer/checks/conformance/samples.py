"""A sample of an operator taken apart, so that its tensors can be replaced by leaves of either kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ops_registry.torch_private import tree_flatten, tree_unflatten
from tracer.checks.conformance.operators import Way
from tracer.checks.derivatives import Derivatives, differentiate
from tracer.checks.leaves import MakeLeaf, can_have_gradient, leaves_of, native_leaf, non_contiguous
from tracer.checks.op_database import samples_of


@dataclass
class OpSample:
    """The arguments of one call, flattened."""

    leaves: list[Any]
    spec: Any
    process: Callable[[Any], Any]
    text: str

    def noncontiguous(self) -> OpSample:
        """The same call with every tensor lying in memory with gaps and an offset, its axes in reverse order."""
        laid_out: dict[int, torch.Tensor] = {}
        for leaf in self.leaves:
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and id(leaf) not in laid_out:
                laid_out[id(leaf)] = non_contiguous(leaf).requires_grad_(leaf.requires_grad)
        return replace(self, leaves=[laid_out.get(id(v), v) for v in self.leaves])

    @classmethod
    def of(cls, sample: Any) -> OpSample:
        """Take a sample of the database apart."""
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        text = ", ".join(
            f"{str(v.dtype)[6:]}{list(v.shape)}" if isinstance(v, torch.Tensor) else repr(v)[:60] for v in leaves
        )
        return cls(leaves, spec, sample.output_process_fn_grad, text[:300])

    def native(self, way: Way, order: int) -> tuple[list[int], Derivatives]:
        """What torch gives, and for which inputs: for all, or, where it cannot, for those that the database marks.

        Raises what torch raises.
        """
        able = [i for i, v in enumerate(self.leaves) if can_have_gradient(v)]
        marked = [i for i in able if self.leaves[i].requires_grad]
        try:
            found = self.derivatives(way, able, order, native_leaf)
        except Exception:
            if able == marked:
                raise
            return marked, self.derivatives(way, marked, order, native_leaf)
        # torch takes running statistics that require grad when the batch is empty, and gives them nothing.
        useful = [i for i, g in zip(able, found.first, strict=True) if i in marked or g is not None]
        return (able, found) if useful == able else (useful, self.derivatives(way, useful, order, native_leaf))

    def derivatives(self, way: Way, wanted: list[int], order: int, leaf: MakeLeaf) -> Derivatives:
        """What one way of writing the operator gives on fresh leaves."""

        def call(leaves: list[Any]) -> Any:
            arguments, keywords = tree_unflatten(leaves, self.spec)
            return self.process(way(arguments, keywords))

        return differentiate(call, leaves_of(self.leaves, wanted, leaf), wanted, order, leaf)


def seed_call() -> None:
    """Set the random state before a call. ``torch.manual_seed`` formats the stack for absent devices, which is slow in a test."""
    torch.default_generator.manual_seed(0)


def first_samples(op: Any, count: int | None) -> list[OpSample]:
    """The first samples of an operator in float64, all of them where ``count`` is None; none where torch cannot make them."""
    try:
        return [OpSample.of(s) for s in itertools.islice(samples_of(op, "cpu", torch.float64, True), count)]
    except Exception:
        return []
