"""What the rules that call fused kernels share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


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


def in_dtype_of(grad: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``tensors`` in the dtype in which the op ran, where autocast had cast them: kernels want one dtype throughout."""
    return tuple([t if t.dtype == grad.dtype else t.to(grad.dtype) for t in tensors])
