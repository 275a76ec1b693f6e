"""Interception, recording and the backward pass: everything that is about calls, and nothing about formulas."""

from tracer import opaque as _opaque  # noqa: F401  (catches the calls that interception does not see)
from tracer import record as _record  # noqa: F401  (gives the tensor its interception)
from tracer.autograd import backward, grad
from tracer.checkpoint import checkpoint, checkpoint_sequential, save_on_cpu, saved_tensors_hooks
from tracer.errors import (
    FreedGraphError,
    FunctionError,
    GradcheckError,
    GradientArgumentError,
    InPlaceError,
    MissingRuleError,
    NoHistoryError,
    OutArgumentError,
    OverwrittenError,
    SavedTensorHookError,
    SecondDerivativeError,
    UnsupportedError,
    UnusedInputError,
)
from tracer.fallback import fallback
from tracer.function import Function
from tracer.gradcheck import gradcheck, gradgradcheck
from tracer.graph import Graph, GraphNode, OpCount
from tracer.tensor import Tensor, tensor, track

__all__ = [
    "FreedGraphError",
    "Function",
    "FunctionError",
    "GradcheckError",
    "GradientArgumentError",
    "Graph",
    "GraphNode",
    "InPlaceError",
    "MissingRuleError",
    "NoHistoryError",
    "OpCount",
    "OutArgumentError",
    "OverwrittenError",
    "SavedTensorHookError",
    "SecondDerivativeError",
    "Tensor",
    "UnsupportedError",
    "UnusedInputError",
    "backward",
    "checkpoint",
    "checkpoint_sequential",
    "fallback",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "save_on_cpu",
    "saved_tensors_hooks",
    "tensor",
    "track",
]
