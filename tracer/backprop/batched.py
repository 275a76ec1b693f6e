"""One sweep for many cotangents: under ``torch.vmap``, or, where a rule cannot be vmapped, one sweep for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer.errors import TransformError, UnsupportedError

Cotangents = Sequence[torch.Tensor | None]
Gradients = tuple[torch.Tensor | None, ...]


def carry_batch(
    sweep: Callable[[Cotangents, bool], Gradients], cotangents: Cotangents, retain_graph: bool
) -> Gradients:
    """The gradients for a batch of cotangents, which dimension 0 counts; None stays None.

    ``sweep(cotangents, retain_graph)`` gives the gradients for one of them.
    """
    present = {i: c for i, c in enumerate(cotangents) if c is not None}
    found: list[int] = []
    count = 0

    def all_at_once(*batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal count
        given: list[torch.Tensor | None] = [None] * len(cotangents)
        for i, cotangent in zip(present, batch, strict=True):
            given[i] = cotangent
        # What was saved stays until it is known that no second attempt needs it.
        results = sweep(given, True)
        count = len(results)
        found[:] = [i for i, r in enumerate(results) if r is not None]
        return tuple([r for r in results if r is not None])

    try:
        gradients: Any = torch.vmap(all_at_once)(*present.values())
    except RuntimeError as error:
        if not refused_by_vmap(error):
            raise
        return _one_by_one(sweep, cotangents, retain_graph)
    results: list[torch.Tensor | None] = [None] * count
    for i, result in zip(found, gradients, strict=True):
        results[i] = result
    return tuple(results)


def _one_by_one(
    sweep: Callable[[Cotangents, bool], Gradients], cotangents: Cotangents, retain_graph: bool
) -> Gradients:
    size = next(len(c) for c in cotangents if c is not None)
    rows = [sweep([None if c is None else c[i] for c in cotangents], retain_graph or i + 1 < size) for i in range(size)]
    return tuple([_stacked(column) for column in zip(*rows, strict=True)])


def _stacked(rows: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [row for row in rows if row is not None]
    return torch.stack(present) if present else None


def refused_by_vmap(error: BaseException) -> bool:
    """Whether ``torch.vmap`` raised it since an op, or a decision by value, cannot be made for a whole batch."""
    if isinstance(error, UnsupportedError | TransformError):
        return False  # of ours, and no rule's
    text = str(error)
    return isinstance(error, NotImplementedError) or "vmap" in text or "atching rule" in text
