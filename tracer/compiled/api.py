"""The public functions: ``tracer.compile`` and ``tracer.export_graph``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracer.compiled.backends import Backend
from tracer.compiled.step import CompiledStep


def compile(
    step: Callable[..., Any] | None = None,
    *,
    modules: Iterable[torch.nn.Module] | torch.nn.Module | None = None,
    backend: Backend = None,
    dynamic: bool = False,
    check: bool = False,
) -> Any:
    """``step``, captured once for each kind of call, forward and backward, and from then on run as one graph of ATen ops.

    ``step(*args, **kwargs)`` calls ``loss.backward()``, or returns gradients. A call of the result fills ``.grad`` of the real parameters,
    adds where there is one, updates buffers, and returns what the step returned.
    """
    if step is None:
        return lambda function: compile(function, modules=modules, backend=backend, dynamic=dynamic, check=check)
    given = [modules] if isinstance(modules, torch.nn.Module) else modules
    return CompiledStep(step, given, backend, dynamic, check)


def export_graph(
    step: Callable[..., Any],
    *args: Any,
    modules: Iterable[torch.nn.Module] | torch.nn.Module | None = None,
    dynamic: bool = False,
    **kwargs: Any,
) -> torch.fx.GraphModule:
    """The graph of one call of ``step``, forward and backward."""
    given = [modules] if isinstance(modules, torch.nn.Module) else modules
    compiled = CompiledStep(step, given, "replay", dynamic, False)
    return compiled.graph_for(args, kwargs)
