"""Interception, recording and the backward pass: everything that is about calls, and nothing about formulas."""

import importlib
from typing import TYPE_CHECKING, Any

from tracer import func
from tracer.backprop.api import backward, grad
from tracer.backprop.replay import replay
from tracer.errors import (
    AnomalyError,
    FreedGraphError,
    FunctionError,
    GradcheckError,
    GradientArgumentError,
    InferenceTensorError,
    InPlaceError,
    MissingRuleError,
    NoHistoryError,
    NotInBackwardError,
    NotNotedError,
    OutArgumentError,
    OverwrittenError,
    SavedTensorHookError,
    SecondDerivativeError,
    TransformError,
    UnsupportedError,
    UnusedInputError,
)
from tracer.functions.checkpoint import checkpoint, checkpoint_sequential, save_on_cpu, saved_tensors_hooks
from tracer.functions.function import Function
from tracer.graph import Graph, GraphNode, OpCount, graph_of
from tracer.install import install as _install
from tracer.notes.calls import Call
from tracer.notes.cuts import Cut
from tracer.recording.fallback import fallback
from tracer.tracked_tensor import Tensor, tensor, track

if TYPE_CHECKING:
    from tracer.checks.gradcheck import gradcheck, gradgradcheck
    from tracer.checks.rules.check import check_rule

__all__ = [
    "AnomalyError",
    "Call",
    "Cut",
    "FreedGraphError",
    "Function",
    "FunctionError",
    "GradcheckError",
    "GradientArgumentError",
    "Graph",
    "GraphNode",
    "InPlaceError",
    "InferenceTensorError",
    "MissingRuleError",
    "NoHistoryError",
    "NotInBackwardError",
    "NotNotedError",
    "OpCount",
    "OutArgumentError",
    "OverwrittenError",
    "SavedTensorHookError",
    "SecondDerivativeError",
    "Tensor",
    "TransformError",
    "UnsupportedError",
    "UnusedInputError",
    "backward",
    "check_rule",
    "checkpoint",
    "checkpoint_sequential",
    "fallback",
    "func",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph_of",
    "replay",
    "save_on_cpu",
    "saved_tensors_hooks",
    "tensor",
    "track",
]

_install()

#: Loaded when they are asked for: who only computes gradients needs none of it.
_CHECKS = {
    "check_rule": "tracer.checks.rules.check",
    "gradcheck": "tracer.checks.gradcheck",
    "gradgradcheck": "tracer.checks.gradcheck",
}


def __getattr__(name: str) -> Any:
    if name in _CHECKS:
        return getattr(importlib.import_module(_CHECKS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
