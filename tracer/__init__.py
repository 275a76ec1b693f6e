"""Interception, recording and the backward pass: everything that is about calls, and nothing about formulas."""

import importlib
from typing import TYPE_CHECKING, Any

from tracer import func
from tracer.backprop.api import backward, grad
from tracer.backprop.progress import at_end_of_backward
from tracer.backprop.replay import replay
from tracer.errors import (
    AnomalyError,
    BatchedGradientError,
    CaptureError,
    CompiledStepError,
    FreedGraphError,
    FunctionError,
    GradcheckError,
    GradientArgumentError,
    InferenceTensorError,
    InPlaceError,
    MissingPackageError,
    MissingRuleError,
    NoHistoryError,
    NotInBackwardError,
    NotNotedError,
    OutArgumentError,
    OverwrittenError,
    ReportError,
    SavedTensorHookError,
    SecondDerivativeError,
    TransformError,
    TransformValueError,
    UnrecordedError,
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
    from tracer.compiled.api import compile, export_graph
    from tracer.reports.audit import audit
    from tracer.reports.conservation import conservation
    from tracer.reports.contributions import contributions
    from tracer.reports.explain import explain
    from tracer.reports.fingerprints import fingerprint
    from tracer.reports.memory import memory
    from tracer.reports.not_finite import find_nan
    from tracer.reports.parting import compare
    from tracer.reports.picture import draw
    from tracer.reports.repeats import repeats
    from tracer.reports.steps import steps
    from tracer.reports.timings import timings
    from tracer.reports.ways import path
    from tracer.reports.why import why

__all__ = [
    "AnomalyError",
    "BatchedGradientError",
    "Call",
    "CaptureError",
    "CompiledStepError",
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
    "MissingPackageError",
    "MissingRuleError",
    "NoHistoryError",
    "NotInBackwardError",
    "NotNotedError",
    "OpCount",
    "OutArgumentError",
    "OverwrittenError",
    "ReportError",
    "SavedTensorHookError",
    "SecondDerivativeError",
    "Tensor",
    "TransformError",
    "TransformValueError",
    "UnrecordedError",
    "UnsupportedError",
    "UnusedInputError",
    "at_end_of_backward",
    "audit",
    "backward",
    "check_rule",
    "checkpoint",
    "checkpoint_sequential",
    "compare",
    "compile",
    "conservation",
    "contributions",
    "draw",
    "explain",
    "export_graph",
    "fallback",
    "find_nan",
    "fingerprint",
    "func",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph_of",
    "memory",
    "path",
    "repeats",
    "replay",
    "save_on_cpu",
    "saved_tensors_hooks",
    "steps",
    "tensor",
    "timings",
    "track",
    "why",
]

_install()

#: Loaded when they are asked for: who only computes gradients needs none of it.
_LATER = {
    "audit": "tracer.reports.audit",
    "check_rule": "tracer.checks.rules.check",
    "compare": "tracer.reports.parting",
    "compile": "tracer.compiled.api",
    "conservation": "tracer.reports.conservation",
    "contributions": "tracer.reports.contributions",
    "find_nan": "tracer.reports.not_finite",
    "fingerprint": "tracer.reports.fingerprints",
    "export_graph": "tracer.compiled.api",
    "draw": "tracer.reports.picture",
    "explain": "tracer.reports.explain",
    "gradcheck": "tracer.checks.gradcheck",
    "gradgradcheck": "tracer.checks.gradcheck",
    "memory": "tracer.reports.memory",
    "repeats": "tracer.reports.repeats",
    "path": "tracer.reports.ways",
    "steps": "tracer.reports.steps",
    "timings": "tracer.reports.timings",
    "why": "tracer.reports.why",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
