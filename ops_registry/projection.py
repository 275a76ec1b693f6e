"""Bringing what a rule returned onto its input: broadcast axes summed, real part taken, dtype cast, shape checked.

It is the transpose of what torch does to an operand on its way into an op (expand, real -> complex, promote), so it is
done once, here, and no rule ever does it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ops_registry.errors import RuleResultError
from ops_registry.shared.precision import wide_dtype


def project(grad: torch.Tensor, shape: torch.Size, dtype: torch.dtype, where: Callable[[], str]) -> torch.Tensor:
    """``grad`` as a gradient of a tensor of ``shape`` and ``dtype``.

    Raises ``RuleResultError`` when ``shape`` does not broadcast to the shape of ``grad``, or the dtypes cannot be reconciled;
    ``where()`` names the rule and the op in the message.
    """
    arrived = grad.shape
    lead = len(arrived) - len(shape)
    if lead > 0 and shape and arrived[lead:] == shape:  # a bias: the most frequent case, with fewer questions
        grad = grad.sum(list(range(lead)))
    elif lead or arrived != shape:  # asking of symbolic sizes whether they are equal would tie the graph to the answer
        if not _broadcasts(shape, arrived):
            raise RuleResultError(
                f"{where()} returned a gradient of shape {tuple(grad.shape)} for an input of shape {tuple(shape)}: the input does not "
                f"broadcast to it. Return the gradient in the shape of the input, or of what the input was broadcast to."
            )
        grad = _summed(grad, shape)
    if grad.dtype != dtype:
        if not (grad.dtype.is_floating_point or grad.dtype.is_complex):
            raise RuleResultError(
                f"{where()} returned a gradient of dtype {grad.dtype}: a gradient is floating or complex."
            )
        if grad.dtype.is_complex and not dtype.is_complex:
            grad = grad.real
        grad = grad.to(dtype)
    return grad


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Whether ``shape`` expands to ``to``."""
    lead = len(to) - len(shape)
    return lead >= 0 and all(s in (1, t) for s, t in zip(shape, to[lead:], strict=True))


def _summed(grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The sum over the axes along which ``shape`` was broadcast. As few calls as possible, and no view where one sum will do.

    Between two sums half precision stays wide, so that it is rounded once, at the end.
    """
    lead = grad.ndim - len(shape)
    stretched = [lead + i for i, size in enumerate(shape) if size == 1 and grad.shape[lead + i] != 1]
    if not shape:
        return grad.sum()
    if stretched:
        grad = grad.sum(stretched, keepdim=True, dtype=wide_dtype(grad.dtype) if lead else None)
    return grad.sum(list(range(lead))) if lead else grad
