"""Interception, recording and the backward pass: everything that is about calls, and nothing about formulas."""

from tracer import opaque as _opaque  # noqa: F401  (catches the calls that interception does not see)
from tracer import record as _record  # noqa: F401  (gives the tensor its interception)
from tracer.autograd import backward, grad
from tracer.errors import (
    FreedGraphError,
    GradientArgumentError,
    InPlaceError,
    MissingRuleError,
    NoHistoryError,
    OutArgumentError,
    OverwrittenError,
    UnsupportedError,
    UnusedInputError,
)
from tracer.fallback import fallback
from tracer.graph import Graph, GraphNode, OpCount
from tracer.tensor import Tensor, tensor, track

__all__ = [
    "FreedGraphError",
    "GradientArgumentError",
    "Graph",
    "GraphNode",
    "InPlaceError",
    "MissingRuleError",
    "NoHistoryError",
    "OpCount",
    "OutArgumentError",
    "OverwrittenError",
    "Tensor",
    "UnsupportedError",
    "UnusedInputError",
    "backward",
    "fallback",
    "grad",
    "tensor",
    "track",
]
