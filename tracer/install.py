"""Everything that glassgrad changes in torch, or puts on the tensor's class from floors above it, each with its reason.

``import tracer`` installs it once. No other file changes anything of torch's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parallel import DistributedDataParallel

from ops_registry.torch_private import (
    DTENSOR_MODULE,
    FULLY_SHARD,
    FULLY_SHARDED_DATA_PARALLEL,
    MAKE_DTENSOR,
    PREPARE_FORWARD,
    SHARDED_FORWARD,
    CheckpointFrame,
    NestedTensor,
    ProcessGroup,
    ScriptFunction,
    ScriptMethod,
    SingleLevelFunction,
    TorchFunctions,
    data_parallel_module,
    register_script_builtin,
)
from tracer.backprop.api import backward, backward_of, grad
from tracer.functions.checkpoint import get_inputs, save_inputs
from tracer.functions.function import apply
from tracer.functions.undefined_grad import TrackedUndefinedGrad
from tracer.importing import AfterImport
from tracer.recording import distributed
from tracer.recording.borders import SPARSE_CONSTRUCTORS, intercepted, recording_script
from tracer.recording.intercept import intercept
from tracer.recording.nested import refusing_tracked
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


@dataclass(frozen=True)
class LaterChange:
    """The same for a class of a module that torch loads on demand: ``value`` takes the method that is there, and returns ours."""

    module: str
    owner: str
    name: str
    value: Callable[[Any], Any]
    reason: str

    def make(self, module: ModuleType) -> None:
        """Make the change, if this release of torch has such a method."""
        owner = getattr(module, self.owner, None)
        there = vars(owner).get(self.name) if owner is not None else None
        if there is None:
            return
        function = getattr(there, "__func__", None)
        setattr(owner, self.name, self.value(there) if function is None else type(there)(self.value(function)))


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
    Change(
        DistributedDataParallel,
        "__init__",
        distributed.refusing_to_reduce(DistributedDataParallel.__init__),
        "its C++ reducer takes the process down where the native requires_grad of a parameter is off",
    ),
    Change(
        DistributedDataParallel,
        PREPARE_FORWARD,
        distributed.refusing_to_prepare(getattr(DistributedDataParallel, PREPARE_FORWARD)),
        "its hooks never fire for parameters tracked later, or beside tracked inputs: each process would train for itself in silence",
    ),
    Change(
        data_parallel_module,
        "replicate",
        distributed.refusing_to_copy(data_parallel_module.replicate),
        "it copies parameters to other devices natively, and the gradients of the copies would not come back",
    ),
    *(
        Change(
            ProcessGroup,
            name,
            distributed.without_history(getattr(ProcessGroup, name), name),
            "no collective reaches interception: what it writes would keep a history that is no longer true",
        )
        for name in distributed.COLLECTIVES
        if hasattr(ProcessGroup, name)
    ),
)

#: What is changed as soon as somebody loads the module, which takes long.
LATER_CHANGES: tuple[LaterChange, ...] = tuple(
    LaterChange(*place, value, reason)
    for places, value, reason in (
        (
            FULLY_SHARD,
            distributed.refusing_to_shard,
            "it puts DTensors in the place of tracked parameters, and recording would end without a word",
        ),
        (
            FULLY_SHARDED_DATA_PARALLEL,
            distributed.refusing_to_flatten,
            "it puts one flat parameter in the place of tracked ones, and recording would end without a word",
        ),
        (
            SHARDED_FORWARD,
            distributed.refusing_to_prepare,
            "beside tracked inputs its parameters get their gradients from our backward pass, which it does not hear of",
        ),
        (
            MAKE_DTENSOR,
            distributed.refusing_to_distribute,
            "a DTensor made of a tracked tensor records nothing, and some calls on it fail inside torch",
        ),
    )
    for place in places
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
    sys.meta_path.insert(0, AfterImport({later.module for later in LATER_CHANGES}, _change_later))


def _change_later(module: ModuleType) -> None:
    for later in LATER_CHANGES:
        if later.module == module.__name__:
            later.make(module)
    if module.__name__ == DTENSOR_MODULE:
        # torch's own way to look at each parameter that a module gets; asked for only where there can be DTensors.
        register_module_parameter_registration_hook(distributed.refuse_replacement)
