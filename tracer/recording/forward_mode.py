"""Dual numbers (``torch.autograd.forward_ad``) that meet tracked tensors: tangents are right, and have no history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, dual_level, make_dual, unpack_dual
from tracer.errors import UnsupportedError
from tracer.tracked_tensor import plain_alias

_REMEDY = (
    "Use tracer.func.jvp (or torch.func.jvp), whose result has a history; or take the tangent outside of what is differentiated (under "
    "torch.no_grad(), or detached)."
)


def handles_dual_numbers(func: Callable[..., Any]) -> bool:
    """Whether the function puts a dual number together, or takes one apart."""
    return func in (make_dual, unpack_dual)


def no_history() -> Exception:
    """The error of a backward pass that comes to a dual number."""
    return UnsupportedError(
        "backward reached a dual number (torch.autograd.forward_ad.make_dual, unpack_dual): forward-mode AD is not recorded, so the "
        f"gradient that comes back through a tangent would be lost. {_REMEDY}"
    )


def alias_with_tangent(native: torch.Tensor) -> torch.Tensor:
    """A plain alias of a tensor of torch's own autograd, a dual number where that is one.

    Raises ``UnsupportedError`` for a tangent that requires grad itself: its gradient would be lost.
    """
    alias, level = plain_alias(native), dual_level()
    tangent = None if level < 0 else unpack_dual(native, level=level)[1]
    if tangent is None:
        return alias
    if tangent.requires_grad:
        raise no_history()
    return make_dual(alias, tangent, level=level)


def refuse_dual(output: torch.Tensor) -> None:
    """Raise ``UnsupportedError`` where a backward pass is to start from a dual number: the gradients would lose their tangents."""
    level = dual_level()
    if level < 0:
        return
    with DisableTorchFunctionSubclass():
        tangent = unpack_dual(output, level=level)[1]
    if tangent is not None:
        raise UnsupportedError(
            f"backward was asked of a dual number of shape {tuple(output.shape)} (torch.autograd.forward_ad): forward-mode AD over "
            f"backward is not supported, the gradients would lose their tangents. Take a second derivative by "
            f"tracer.func.hvp, or torch.autograd.grad(..., create_graph=True), without dual numbers."
        )
