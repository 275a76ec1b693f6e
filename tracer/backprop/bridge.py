"""Handing gradients on to torch's own autograd, where a tensor with a native history met a tracked one."""

from __future__ import annotations

from typing import Any

import torch

from tracer.errors import UnsupportedError
from tracer.node import Bridge


def backward_into_torch(
    bridged: list[tuple[Bridge, torch.Tensor]], inputs: list[torch.Tensor] | None, keep_graph: bool
) -> list[torch.Tensor | None]:
    """Carry gradients that arrived at bridges on into torch's autograd.

    ``inputs`` None: accumulate into native leaves. Otherwise return the gradient of each of ``inputs``, None where torch finds no way.
    ``keep_graph``: torch's graph may be gone through again.
    """
    roots: Any = [bridge.root() for bridge, _ in bridged]
    grads = [g for _, g in bridged]
    if inputs is None:
        torch.autograd.backward(roots, grads, retain_graph=keep_graph)
        return []
    if not bridged or not inputs:
        return [None] * len(inputs)
    return list(torch.autograd.grad(roots, inputs, grads, retain_graph=keep_graph, allow_unused=True))


def not_recordable(native: torch.Tensor) -> UnsupportedError:
    """The error for a recorded backward pass that comes to a tensor with a history in torch's own autograd."""
    return UnsupportedError(
        f"create_graph=True reached a tensor of shape {tuple(native.shape)} with a history in torch's own autograd, where "
        f"the backward pass cannot be recorded. Track its leaves before they are used (tracer.track, nn.track)."
    )
