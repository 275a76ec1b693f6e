"""Anomaly mode (``torch.autograd.detect_anomaly``): each call remembers the stack that made it, and nan in backward is an error.

While the mode is on, a recorder stands where an open ``Graph`` does. So a call pays nothing for it when it is off.
"""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from typing import Any, NamedTuple

import torch

from ops_registry.sites import user_frame
from ops_registry.torch_private import DisableTorchFunctionSubclass, set_anomaly_enabled
from tracer.errors import AnomalyError
from tracer.graph import set_default_recorder
from tracer.naming import describe_node
from tracer.node import Node, tensors_in


class Trace(NamedTuple):
    """Where a call was made, and the call whose backward made it, if one did."""

    name: str
    stack: str
    inducer: Trace | None


class _Visited(threading.local):
    """The call whose backward runs on this thread."""

    trace: Trace | None = None


visited = _Visited()


class StackRecorder:
    """Notes the user's stack on every new node."""

    def note(self, node: Node, result: Any = None, bound: tuple[Any, ...] | None = None) -> None:
        """Note where the call of ``node`` is made."""
        frame = user_frame()
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        node.extra().trace = Trace(node.name(), stack, visited.trace)


def switch(mode: bool, check_nan: bool = True) -> None:
    """``torch.set_anomaly_enabled``, for tracked tensors too."""
    set_anomaly_enabled(mode, check_nan)
    set_default_recorder(StackRecorder() if mode else None)


def trace_of(node: Node) -> Trace | None:
    """What the recorder has noted of a node."""
    return None if node.extras is None else node.extras.trace


def check(node: Node, grad_inputs: dict[int, Any]) -> None:
    """Raise ``AnomalyError`` if one of the gradients that ``node`` passes on holds nan, where the mode checks for it."""
    if not torch.is_anomaly_check_nan_enabled():
        return
    for number, place in enumerate(node.gradient_places):
        if place is None or place[0] not in grad_inputs:
            continue
        position, within = place
        given = grad_inputs[position]
        for grad in tensors_in(given if within is None or not isinstance(given, list | tuple) else given[within]):
            if _has_nan(grad):
                raise AnomalyError(
                    f"Function '{node.name()}' returned nan values in its {number}th output: the gradient of shape "
                    f"{tuple(grad.shape)} that backward of {describe_node(node)} gives. The warning shows the call in the forward "
                    f"pass; keep its input away from where the derivative is infinite or undefined."
                )


def show(node: Node) -> None:
    """Warn with the stack of the call whose backward failed, and of those that it was induced by, as torch does."""
    trace = trace_of(node)
    if trace is None:
        text = (
            f"Error detected in {node.name()}. No forward pass information available. Enable detect anomaly during forward "
            f"pass for more information."
        )
    else:
        text = f"Error detected in {trace.name}. Traceback of forward call that caused the error:\n{trace.stack}"
        while trace.inducer is not None:
            trace = trace.inducer
            text += (
                f"\n\nPrevious calculation was induced by {trace.name}. Traceback of forward call that induced the previous "
                f"calculation:\n{trace.stack}"
            )
    warnings.warn(text, UserWarning, stacklevel=_depth())


def _depth() -> int:
    """How many frames lie between ``warnings.warn`` and the user's line."""
    frame, wanted, depth = sys._getframe(1), user_frame(), 1
    while frame is not wanted and frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def _has_nan(grad: torch.Tensor) -> bool:
    with DisableTorchFunctionSubclass(), torch.no_grad():
        values = grad if grad.layout is torch.strided else grad.coalesce().values() if grad.is_sparse else grad.values()
        return bool(values.isnan().any())
