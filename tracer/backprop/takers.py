"""Leaves whose gradient somebody takes on its way to ``.grad``, and puts there when the pass has come through.

Data parallel training takes each gradient as soon as it is complete, sends it to the other processes while backward goes on, and fills
``.grad`` with the mean. A pass that fails leaves ``.grad`` as it was.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer.backprop.accumulate import grad_is_left_alone
from tracer.backprop.hooks import hooks_on_filling
from tracer.backprop.progress import Progress, in_progress
from tracer.node import Leaf


def reach_leaf(sweep: Progress, leaf: Leaf, buffer: list[Any]) -> None:
    """Fill ``.grad`` at the end of the sweep, or at once where hooks wait for that; ``buffer`` holds the gradient, or None."""
    tensor = leaf.variable
    if tensor is None:
        return
    hooks = hooks_on_filling(leaf, buffer)
    if buffer[0] is not None and hooks:
        # Such hooks step and drop the gradient to save memory: they cannot wait for the end of the sweep.
        sweep.fill([(tensor, buffer)])
    for hook in hooks:
        hook(tensor)
    if not _taken(sweep, leaf, tensor, buffer) and buffer and buffer[0] is not None:
        sweep.leaves.append((tensor, buffer))


def _taken(sweep: Progress, leaf: Leaf, tensor: torch.Tensor, buffer: list[Any]) -> bool:
    taker = None if leaf.extras is None or leaf.extras.taker is None else leaf.extras.taker()
    if taker is None or grad_is_left_alone() or not taker.take(sweep, tensor, buffer):
        return False
    if taker not in sweep.takers:
        sweep.takers.append(taker)
    return True


def settle(sweep: Progress) -> None:
    """Let those who took gradients fill ``.grad``, before any other leaf is filled: so a failure leaves all as they were."""
    outer = in_progress()[-2] if len(in_progress()) > 1 else None
    for taker in sweep.takers:
        if not taker.settle(outer is None) and outer is not None and taker not in outer.takers:
            outer.takers.append(taker)
    sweep.takers.clear()


def abandon(sweep: Progress) -> None:
    """The sweep has failed: those who took gradients forget them."""
    for taker in sweep.takers:
        taker.abandon()
    sweep.takers.clear()
