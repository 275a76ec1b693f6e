"""A sample of an operator with larger arguments than the database has: what goes wrong in half precision mostly adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer.checks.conformance.samples import OpSample
from tracer.checks.leaves import can_have_gradient, plain

#: How many times an argument is broadcast, and how long a dimension is made.
ROWS, LENGTH = (10, 100), 300

#: torch writes beyond its memory where lengths do not fit the data, which they no longer do.
NOT_ENLARGED = "_segment_reduce"


@dataclass(frozen=True)
class Variant:
    """A sample as it is, or with larger arguments."""

    name: str
    arguments: Callable[[Sequence[Any], torch.Generator], list[Any]]


AS_IT_IS = Variant("", lambda leaves, generator: list(leaves))


def enlarged(op: str, sample: OpSample) -> Iterator[Variant]:
    """The larger calls that may be made of a sample of an operator: torch need not take them."""
    tensors = [v for v in sample.leaves if isinstance(v, torch.Tensor)]
    if op.startswith(NOT_ENLARGED) or any(t.layout is not torch.strided for t in tensors):
        return
    able = [i for i, v in enumerate(sample.leaves) if can_have_gradient(v)]
    if len(able) > 1:
        for rows in ROWS:
            yield from (_in_rows(i, rows) for i in able)
    yield _lengthened(-1)
    yield _lengthened(0)


def _in_rows(kept: int, rows: int) -> Variant:
    """All tensors but one get a new first dimension, along which that one is broadcast."""

    def arguments(leaves: Sequence[Any], generator: torch.Generator) -> list[Any]:
        return [
            _repeated(v, (rows, *[1] * v.dim()), generator) if can_have_gradient(v) and i != kept else v
            for i, v in enumerate(leaves)
        ]

    return Variant(f"argument {kept} broadcast over {rows} rows", arguments)


def _lengthened(dim: int) -> Variant:
    """All tensors are made longer along one dimension."""

    def arguments(leaves: Sequence[Any], generator: torch.Generator) -> list[Any]:
        lengths = [v.shape[dim] for v in leaves if isinstance(v, torch.Tensor) and v.dim()]
        times = -(-LENGTH // max([1, *lengths]))
        return [_longer(v, dim, times, generator) if isinstance(v, torch.Tensor) and v.dim() else v for v in leaves]

    return Variant(f"{LENGTH} long in dimension {dim}", arguments)


def _longer(tensor: torch.Tensor, dim: int, times: int, generator: torch.Generator) -> torch.Tensor:
    repeats = [1] * tensor.dim()
    repeats[dim] = times
    return _repeated(tensor, repeats, generator)


def _repeated(tensor: torch.Tensor, repeats: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """A tensor repeated. Floating elements are made smaller, each by a random factor: they stay in most domains, and few are the same."""
    repeated = plain(tensor).repeat(*repeats)
    if not tensor.is_floating_point():
        return repeated
    factors = torch.rand(repeated.shape, generator=generator) * 0.4 + 0.6
    return (repeated * factors.to(tensor.device)).to(tensor.dtype)
