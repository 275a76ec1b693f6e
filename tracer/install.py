"""Everything that glassgrad changes in torch, or puts on the tensor's class from floors above it, each with its reason.

``import tracer`` installs it once. No other file changes anything of torch's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import torch
import torch.masked
import torch.multiprocessing
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction

from ops_registry.torch_private import (
    AOT_FUNCTION,
    DTENSOR_MODULE,
    FULLY_SHARD,
    FULLY_SHARDED_DATA_PARALLEL,
    MAKE_DTENSOR,
    PREPARE_FORWARD,
    SHARDED_FORWARD,
    TRACERS,
    CheckpointFrame,
    DeviceContexts,
    NestedTensor,
    ProcessGroup,
    ProxyMode,
    ScriptFunction,
    ScriptMethod,
    ScriptModule,
    SingleLevelFunction,
    TorchFunctions,
    Variable,
    any_requires_grad,
    control_flow,
    custom_function_call,
    data_parallel_module,
    module_apply,
    module_load,
    register_script_builtin,
    set_default_tensor_type,
    torch_c,
    transform_parts,
    vmap_parts,
)
from tracer.anomaly import switch
from tracer.backprop import progress
from tracer.backprop.api import backward, backward_of, grad
from tracer.backprop.engine import Engine
from tracer.changes import Change, LaterChange, redirected
from tracer.func.handover import TRANSFORMS, functionalize
from tracer.func.vmapped import flat_vmap
from tracer.functions.checkpoint import get_inputs, make_frame, run_reentrant, save_inputs
from tracer.functions.function import apply, apply_in_transform
from tracer.functions.undefined_grad import TrackedUndefinedGrad
from tracer.importing import AfterImport
from tracer.node import Node
from tracer.recording import distributed
from tracer.recording.compilers import refusing_tracked_inputs, taught, tracing_calls
from tracer.recording.control_flow import EAGER, running_eagerly
from tracer.recording.conversions import (
    TYPED_CONSTRUCTORS,
    as_subclass,
    as_tensor,
    asarray,
    converting,
    knowing_replacements,
    new,
    new_tensor,
    noticing,
    set_,
    typed_constructor,
    unwrapping,
)
from tracer.recording.grad_fn import grad_fn
from tracer.recording.guards import Disabled, DisabledForSubclasses
from tracer.recording.intercept import intercept
from tracer.recording.library_ops import asks_tracked_too
from tracer.recording.module_parameters import loading_tracked, staying_tracked
from tracer.recording.nested import refusing_tracked
from tracer.recording.numbers import NUMBER_CONSTRUCTORS, refusing_numbers
from tracer.recording.optimizer_steps import STEPS, uninterrupted
from tracer.recording.python_functions import CHECKS, passing_by
from tracer.recording.script import copying, exporting, recording_script, saving, tracing
from tracer.recording.sparse_constructors import SPARSE_CONSTRUCTORS, intercepted
from tracer.recording.subclasses import answers_calls, init_subclass, let_meet, refuse_masked, subclasses_of
from tracer.recording.swapping import swapping
from tracer.tracked_tensor import HANDLERS, Tensor, reduce_between_processes

#: torch's functions that make a tensor of a tensor and intercept nothing, as ours stand in their place.
_asarray, _as_tensor = converting(torch.asarray), converting(torch.as_tensor)

#: What is to be known beside their replacements, where torch knows its own functions by identity.
_ORIGINALS = (
    torch.tensor,
    torch.asarray,
    torch.as_tensor,
    *(getattr(torch, name) for name in SPARSE_CONSTRUCTORS),
    *(getattr(owner, name) for owner, name, _ in NUMBER_CONSTRUCTORS),
)


CHANGES: tuple[Change, ...] = (
    Change(
        Tensor, "__torch_function__", classmethod(intercept), "the class stands below recording: its calls come here"
    ),
    Change(Tensor, "backward", backward_of, "the class stands below the backward pass that it starts"),
    Change(Tensor, "grad_fn", property(grad_fn), "the class stands below saved tensors, which grad_fn gives a look at"),
    Change(
        torch_c,
        "_current_graph_task_id",
        progress.current_graph_task_id,
        "multi-grad hooks and checkpoints ask it which backward pass they are in, so as to recompute once: torch knows its own only",
    ),
    Change(
        torch_c,
        "_will_engine_execute_node",
        progress.will_engine_execute_node,
        "multi-grad hooks ask it how many gradients to wait for: torch knows its own nodes only",
    ),
    Change(
        torch_c,
        "_current_autograd_node",
        progress.current_autograd_node,
        "hooks and dispatch modes ask it which node is being visited: torch knows its own only",
    ),
    Change(
        torch.autograd,
        "_is_checkpoint_valid",
        progress.is_checkpoint_valid,
        "checkpoints with use_reentrant=True ask it whether they may fill leaves: torch knows its own backward passes only",
    ),
    Change(
        Variable,
        "_execution_engine",
        Engine(),
        "hooks queue callbacks there, for the end of the pass around them, and passes from gradient edges start there",
    ),
    Change(
        SingleLevelFunction,
        "apply",
        classmethod(apply),
        "every autograd.Function.apply ends here and never reaches interception: tracked arguments would lose their history",
    ),
    Change(
        torch,
        "set_anomaly_enabled",
        switch,
        "anomaly mode notes the stack of every call: calls would pay for asking whether it is on. One bound before, which is "
        "written in C and keeps its code, turns on the check for nan alone",
    ),
    *(
        Change(
            kind,
            "__call__",
            recording_script(kind.__call__),
            "calls of compiled code never reach interception: they are recorded as one opaque call",
        )
        for kind in (ScriptFunction, ScriptMethod)
    ),
    *(
        Change(owner, name, passing_by(check), "handing a call over ends in the same body", "aten::has_torch_function")
        for owner in (torch.nn.functional, torch.functional)
        for name, check in CHECKS.items()
    ),
    *(
        change
        for functions, replacement, reason in (
            (TRACERS, tracing, "torch traces what its C++ sees: tracked parameters would become constants"),
            (STEPS, uninterrupted, "none of an optimiser's calls is recorded: interception would only slow it down"),
        )
        for function in functions
        for change in redirected(function, replacement, reason)
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
        torch.Tensor,
        "__init_subclass__",
        classmethod(init_subclass),
        "a class with its own __torch_function__ would run calls with tracked tensors unrecorded: its gradient would be lost",
    ),
    *(
        Change(
            kind,
            "__torch_function__",
            let_meet(kind),
            "as for classes to come: calls with tracked tensors are recorded",
        )
        for kind in subclasses_of(torch.Tensor)
        if answers_calls(kind) and kind is not NestedTensor
    ),
    Change(
        torch.masked.MaskedTensor,
        "__new__",
        staticmethod(refuse_masked(torch.masked.MaskedTensor.__new__)),
        "it compares classes, and fails with a message about two classes of one name; the gradient would be lost in it",
    ),
    Change(
        torch.nn.Module,
        module_apply.__name__,
        staying_tracked(module_apply),
        "to_empty() replaces parameters by plain tensors: a tracked model would no longer be one, in silence",
    ),
    Change(
        torch.nn.Module,
        module_load.__name__,
        loading_tracked(module_load),
        "load_state_dict(assign=True) replaces parameters by plain ones: a tracked model would no longer be one, in silence",
    ),
    Change(
        torch.utils,
        "swap_tensors",
        swapping(torch.utils.swap_tensors),
        "it refuses tensors with a weak reference, and a leaf's node holds one; nor does it know our nodes",
    ),
    *(
        Change(
            torch,
            name,
            value,
            "torch records in such a block, and we would see nothing of it: tracked tensors would lose their history",
        )
        for name, value in (("DisableTorchFunctionSubclass", DisabledForSubclasses), ("DisableTorchFunction", Disabled))
    ),
    Change(
        torch._C,
        "_any_requires_grad",
        asks_tracked_too(any_requires_grad),
        "an op of a library with a registered backward asks it, and knows native tensors only: tracked ones would lose their history",
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
    Change(
        torch,
        "tensor",
        noticing(torch.tensor, "conversion"),
        "it copies a tensor unseen and without its history: a graph with sites tells",
        "aten::tensor",
    ),
    *(
        Change(
            owner,
            "to_dlpack",
            noticing(owner.to_dlpack, "dlpack"),
            "it hands out the memory of a tensor unseen: a graph with sites tells",
        )
        for owner in (torch, torch.utils.dlpack)
    ),
    Change(torch, "asarray", _asarray, "it copies and converts unseen: the history would be cut", "aten::asarray"),
    Change(
        torch, "as_tensor", _as_tensor, "it copies and converts unseen: the history would be cut", "aten::as_tensor"
    ),
    Change(
        torch.Tensor,
        "__new__",
        staticmethod(new_tensor),
        "torch.Tensor(x) is a view of x made unseen: its history would be cut",
    ),
    Change(torch.Tensor, "new", new, "x.new(y) is a view of y made unseen: its history would be cut"),
    Change(torch.Tensor, "set_", set_, "x.set_(y) shares the memory of y unseen: its history would be cut"),
    Change(torch.Tensor, "as_subclass", as_subclass, "it makes a view unseen: the history would be cut"),
    *(
        Change(
            owner,
            name,
            typed_constructor(getattr(owner, name)),
            "torch.FloatTensor(x) and its like are views of x made unseen: the history would be cut",
        )
        for owner in (torch, torch.cuda, torch.sparse, torch.cuda.sparse)
        for name in TYPED_CONSTRUCTORS
        if hasattr(owner, name)
    ),
    Change(
        torch._C,
        set_default_tensor_type.__name__,
        unwrapping(set_default_tensor_type),
        "it takes torch's own class only, not what stands in the place of torch.FloatTensor",
    ),
    Change(
        DeviceContexts,
        "_device_constructors",
        knowing_replacements(DeviceContexts._device_constructors, _ORIGINALS),
        "torch.set_default_device knows torch's constructors by identity, and is told of the one behind each replacement",
    ),
    Change(
        vmap_parts,
        "_flat_vmap",
        flat_vmap,
        "what every form of torch.vmap comes to: it would hide the history of tracked tensors inside its wrappers",
    ),
    *(
        Change(
            transform_parts,
            name,
            transform,
            "torch.func follows derivatives in wrappers that interception does not see: with tracked tensors they would be lost",
        )
        for name, transform in TRANSFORMS.items()
    ),
    Change(torch.func, "linearize", TRANSFORMS["linearize"], "the public name of the same function"),
    Change(torch.func, "functionalize", functionalize, "it wraps tensors as the other transforms do"),
    *(
        Change(
            owner,
            name,
            refusing_numbers(getattr(owner, name), before),
            "torch's constructors take a tensor without grad as a number: a tracked one would lose its gradient in silence",
            f"aten::{name}" if owner is torch else "",
        )
        for owner, name, before in NUMBER_CONSTRUCTORS
    ),
    Change(
        CheckpointFrame,
        "__init__",
        make_frame,
        "a stretch that runs again in backward would take the rules in force there, and save what they name",
    ),
    Change(
        CheckpointFunction,
        "forward",
        staticmethod(run_reentrant),
        "with use_reentrant=True too, the stretch would run again under the rules in force in backward",
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
        (
            AOT_FUNCTION,
            refusing_tracked_inputs,
            "it traces torch's own autograd, and fails inside torch where it comes to a tracked tensor",
        ),
    )
    for place in places
)

#: torch's functions that the floors above the class answer when a tracked tensor is among their arguments.
ANSWERED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.backward: backward_of,
    torch.autograd.backward: backward,
    torch.autograd.grad: grad,
    _asarray: asarray,
    _as_tensor: as_tensor,
    custom_function_call: apply_in_transform,
    torch.Tensor.grad_fn.__get__: grad_fn,  # type: ignore[union-attr]
}


def install() -> None:
    """Make the changes, and tell Python how tracked tensors go from one process to another."""
    for change in CHANGES:
        setattr(change.owner, change.name, change.value)
        if change.script_name:
            register_script_builtin(change.value, change.script_name)
    HANDLERS.update(ANSWERED)
    ForkingPickler.register(Tensor, reduce_between_processes)
    # No attribute, so no ``Change``: ``isinstance(y.grad_fn, torch.autograd.graph.Node)`` holds.
    torch.autograd.graph.Node.register(Node)
    sys.meta_path.insert(0, AfterImport({later.module for later in LATER_CHANGES}, _change_later))


def _change_later(module: ModuleType) -> None:
    for later in LATER_CHANGES:
        if later.module == module.__name__:
            later.make(module)
    if module.__name__ == DTENSOR_MODULE:
        # torch's own way to look at each parameter that a module gets; asked for only where there can be DTensors.
        register_module_parameter_registration_hook(distributed.refuse_replacement)
