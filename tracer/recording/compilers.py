"""torch's compilers and tracers, which take a tracked tensor for one that records nothing.

Code that torch.compile meets one in runs eagerly, with a warning, or raises under ``fullgraph=True``. ``tracer.install`` puts these in the
place of torch's own.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ops_registry.torch_private import (
    DYNAMO_BUILDER,
    DYNAMO_ERRORS,
    DYNAMO_SETTINGS,
    DYNAMO_SKIPPED,
    DYNAMO_TYPES,
    tree_flatten,
)
from tracer.errors import UnsupportedError
from tracer.tracked_tensor import Tensor

_OURS = ("tracer", "ops_registry")
#: What stands in the place of torch's own functions, which torch.compile follows in plain code too.
_TRACEABLE = frozenset(
    f"tracer.{name}"
    for name in (
        "changes",
        "func.handover",
        "func.vmapped",
        "functions.function",
        "install",
        "recording.compilers",
        "recording.control_flow",
        "recording.conversions",
        "recording.distributed",
        "recording.guards",
        "recording.library_ops",
        "recording.module_parameters",
        "recording.nested",
        "recording.numbers",
        "recording.script",
        "recording.sparse_constructors",
        "recording.subclasses",
        "recording.swapping",
    )
)


@functools.cache
def teach_dynamo() -> None:
    """Let torch.compile give way at a tracked tensor. Its part that looks at tensors is loaded with the first use, so not before."""
    builder = importlib.import_module(DYNAMO_BUILDER).VariableBuilder
    wrap_tensor = builder.wrap_tensor
    errors, types = importlib.import_module(DYNAMO_ERRORS), importlib.import_module(DYNAMO_TYPES)

    class CompiledCodeError(UnsupportedError, errors.UserError):  # type: ignore[name-defined]
        """A tracked tensor in code under torch.compile. As torch's own class of that kind, it makes the code run eagerly if it may."""

        def __init__(self, message: str) -> None:
            errors.UserError.__init__(self, errors.UserErrorType.INVALID_INPUT, message)
            skip = types.FrameAction.SKIP
            #: This code and all that it calls.
            self.frame_exec_strategy = types.FrameExecStrategy(skip, skip)

    CompiledCodeError.__module__ = __name__
    #: The files whose users have been told: once each.
    told: set[str] = set()

    @functools.wraps(wrap_tensor)
    def giving_way(self: Any, value: torch.Tensor) -> Any:
        if type(value) is not Tensor:
            return wrap_tensor(self, value)
        code = self.tx.f_code
        place = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
        if getattr(self.tx, "one_graph", False):
            raise CompiledCodeError(
                f"torch.compile came to a tracked tensor in {place}: it does not record what glassgrad records, and fullgraph=True "
                f"forbids to run eagerly. Compile the step with tracer.compile, or the plain model with torch.compile. (In functions that "
                f"torch.cond, scan and their kin call: pass the tensor as an operand.)"
            )
        text = (
            f"torch.compile came to a tracked tensor in {place}, which therefore runs eagerly from now on: the results are right, and "
            f"no faster. tracer.compile(step) compiles a training step with its rules; torch.compile is for the plain model."
        )
        ours = self.tx.f_globals.get("__name__", "").partition(".")[0] in _OURS
        if not ours and code.co_filename not in told and not code.co_filename.startswith("<"):
            told.add(code.co_filename)
            warnings.warn(text, UserWarning, stacklevel=2)
        raise CompiledCodeError(text)

    builder.wrap_tensor = giving_way
    _skip_ours(importlib.import_module(DYNAMO_SKIPPED).add)


def _skip_ours(skip: Callable[[str], None]) -> None:
    """Let torch.compile run our own code as it is: what records calls, makes tracked tensors, runs backward."""
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0] in _OURS and hasattr(module, "__path__")
        if name.partition(".")[0] in _OURS and not package and name not in _TRACEABLE:
            skip(name)


def taught(compiles: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile``, which then gives way at tracked tensors."""

    @functools.wraps(compiles)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        teach_dynamo()
        return compiles(*args, **kwargs)

    return compiled


def as_written() -> AbstractContextManager[Any]:
    """While a step is captured, code under torch.compile runs as it is written: there too torch.compile would give way, or else raise."""
    settings: AbstractContextManager[Any] = importlib.import_module(DYNAMO_SETTINGS).patch(
        error_on_nested_fx_trace=False
    )
    return settings


def tracing_calls(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """``__torch_dispatch__`` of torch's tracer into ATen graphs (``make_fx``), which says what it cannot trace."""

    @functools.wraps(dispatch)
    def traced(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = dispatch(self, func, types, args, kwargs)
        if result is NotImplemented and any(type(leaf) is Tensor for leaf in tree_flatten((args, kwargs))[0]):
            raise UnsupportedError(
                f"make_fx, or torch.export, came to {func} with a tracked tensor that is no argument of the traced function and no "
                f"parameter of an exported module: it would become a constant. Make it an argument, or detach it into a plain tensor "
                f"(x.data)."
            )
        return result

    return traced


def refusing_tracked_inputs(make: Callable[..., Any]) -> Callable[..., Any]:
    """``functorch.compile.aot_function``, which says what it cannot compile: a function of tracked tensors, arguments or closed over."""

    @functools.wraps(make)
    def made(function: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = make(function, *args, **kwargs)

        def refusal() -> UnsupportedError:
            return UnsupportedError(
                "aot_function, or aot_module, came to a tracked tensor: it traces torch's own autograd, which has no part in it. Compile "
                "the plain function or model, or run this one eagerly."
            )

        @functools.wraps(compiled)
        def run(*inputs: Any, **keywords: Any) -> Any:
            if any(type(leaf) is Tensor for leaf in tree_flatten((inputs, keywords))[0]):
                raise refusal()
            try:
                return compiled(*inputs, **keywords)
            except TypeError as error:
                if "dispatch" in str(error) or "FunctionalTensor" in str(error):
                    raise refusal() from error
                raise

        return run

    return made
