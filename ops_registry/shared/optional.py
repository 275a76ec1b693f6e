"""Gradients that may be missing: those of a kernel's results, of which a mask says which there are, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def per_result(grad: Any, output_mask: Sequence[bool]) -> tuple[Any, ...]:
    """The gradients of a kernel's results, one for each entry of its output mask, None where nothing arrived.

    A kernel asked for one result alone has one differentiable result, whose gradient comes without a tuple.
    """
    if isinstance(grad, tuple):
        return grad
    return tuple([grad if wanted else None for wanted in output_mask])


def total(*terms: Any) -> Any:
    """The sum of those terms that are not None; None when there are none."""
    present = [t for t in terms if t is not None]
    if not present:
        return None
    result = present[0]
    for term in present[1:]:
        result = result + term
    return result
