"""Everything that glassgrad changes in torch, or puts on the tensor's class from floors above it, each with its reason.

``import tracer`` installs it once. No other file changes anything of torch's.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.torch_private import (
    TRACERS,
    CheckpointFrame,
    NestedTensor,
    ProxyMode,
    ScriptFunction,
    ScriptMethod,
    ScriptModule,
    SingleLevelFunction,
    TorchFunctions,
    control_flow,
    register_script_builtin,
)
from tracer.backprop.api import backward, backward_of, grad
from tracer.functions.checkpoint import get_inputs, save_inputs
from tracer.functions.function import apply
from tracer.functions.undefined_grad import TrackedUndefinedGrad
from tracer.recording.borders import SPARSE_CONSTRUCTORS, intercepted, refusing_tracked
from tracer.recording.compilers import taught, tracing_calls
from tracer.recording.control_flow import EAGER, running_eagerly
from tracer.recording.intercept import intercept
from tracer.recording.script import copying, exporting, recording_script, saving, tracing
from tracer.tracked_tensor import HANDLERS, Tensor


@dataclass(frozen=True)
class Change:
    """``setattr(owner, name, value)``."""

    owner: Any
    name: str
    value: Any
    reason: str
    #: The op of torch's that TorchScript is to take the value for, where it is one.
    script_name: str = ""


def _calling(*args: Any, **kwargs: Any) -> Any:
    """What the code of a redirected function is, but for the name of what it calls."""
    return _replacement(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


def redirected(
    function: Any, replacement: Callable[[Callable[..., Any]], Callable[..., Any]], reason: str
) -> tuple[Change, ...]:
    """What lets a function of torch's written in Python call another one, which ``replacement`` makes of a copy of it.

    The function stays the same object: users import it by name, mostly before they import glassgrad.
    """
    names, name = function.__globals__, f"_glassgrad_{function.__name__}"
    original = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    return (
        Change(sys.modules[names["__name__"]], name, replacement(original), reason),
        Change(
            function,
            "__signature__",
            inspect.signature(function),
            "what help() shows of the function that has other code now",
        ),
        Change(
            function,
            "__defaults__",
            None,
            "the code of the function, which is other code now, has no arguments to give them to",
        ),
        Change(function, "__code__", _calling.__code__.replace(co_name=function.__name__, co_names=(name,)), reason),
    )


CHANGES: tuple[Change, ...] = (
    Change(
        Tensor, "__torch_function__", classmethod(intercept), "the class stands below recording: its calls come here"
    ),
    Change(Tensor, "backward", backward_of, "the class stands below the backward pass that it starts"),
    Change(
        SingleLevelFunction,
        "apply",
        classmethod(apply),
        "every autograd.Function.apply ends here and never reaches interception: tracked arguments would lose their history",
    ),
    Change(
        ScriptFunction,
        "__call__",
        recording_script(ScriptFunction.__call__),
        "calls of compiled code never reach interception: they are recorded as one opaque call",
    ),
    Change(
        ScriptMethod,
        "__call__",
        recording_script(ScriptMethod.__call__),
        "as ScriptFunction, for methods of scripted modules",
    ),
    *(
        change
        for tracer in TRACERS
        for change in redirected(
            tracer,
            tracing,
            "torch traces what its C++ sees, where a tracked parameter does not require grad: it would become a constant",
        )
    ),
    *(
        Change(
            ScriptModule,
            name,
            saving(getattr(ScriptModule, name)),
            "torch writes to the file whether a parameter requires grad natively: loaded again, tracked ones would be constants",
        )
        for name in ("save", "save_to_buffer")
    ),
    Change(
        ScriptModule,
        "__deepcopy__",
        copying(ScriptModule.__deepcopy__),
        "torch copies in C++, where a tracked parameter does not require grad: the copy's would be constants",
    ),
    *(
        change
        for name, ours in EAGER.items()
        if (theirs := control_flow(name)) is not None
        for change in redirected(
            theirs,
            functools.partial(running_eagerly, ours=ours),
            "torch compiles these functions, eagerly too: tracked tensors would lose their history, or the compiler would fail",
        )
    ),
    *redirected(
        torch.compile,
        taught,
        "torch's compiler takes a tracked tensor for one that records nothing: it has to give way, and is loaded with its first use",
    ),
    *redirected(
        torch.export.export,
        exporting,
        "torch exports what its C++ sees, where a tracked parameter does not require grad",
    ),
    Change(
        ProxyMode,
        "__torch_dispatch__",
        tracing_calls(ProxyMode.__torch_dispatch__),
        "make_fx turns its refusal of a tracked tensor into an error of Python's operators, which tells nothing",
    ),
    Change(
        NestedTensor,
        "__torch_function__",
        refusing_tracked(NestedTensor.__torch_function__),
        "a nested tensor answers every call it takes part in: a tracked one beside it would lose its gradient in silence",
    ),
    Change(
        TorchFunctions,
        "UndefinedGrad",
        TrackedUndefinedGrad,
        "torch's own gradcheck takes gradients away with a call that works on native tensors only",
    ),
    *(
        Change(
            torch,
            name,
            intercepted(getattr(torch, name), position),
            "torch's constructors of sparse tensors intercept nothing: the history of the values would be cut",
            f"aten::{name}",
        )
        for name, position in SPARSE_CONSTRUCTORS.items()
    ),
    # Before torch 2.13 a custom Function saves the inputs of a checkpointed stretch, and there is nothing to change.
    *(
        Change(
            CheckpointFrame,
            name,
            value,
            "torch's checkpoint saves its inputs natively: tracked ones would lose their history",
        )
        for name, value in (("save_inputs", save_inputs), ("get_inputs", get_inputs))
        if hasattr(CheckpointFrame, name)
    ),
)

#: torch's functions that the floors above the class answer when a tracked tensor is among their arguments.
ANSWERED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.backward: backward_of,
    torch.autograd.backward: backward,
    torch.autograd.grad: grad,
}


def install() -> None:
    """Make the changes."""
    for change in CHANGES:
        setattr(change.owner, change.name, change.value)
        if change.script_name:
            register_script_builtin(change.value, change.script_name)
    HANDLERS.update(ANSWERED)
