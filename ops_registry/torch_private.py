"""Every private torch name that glassgrad needs, in one place, with the reason why no public one serves.

Public names are preferred everywhere else. When a torch release renames something, this is the file to mend.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.nested._internal.nested_tensor
import torch.utils.checkpoint

#: Turns interception by subclasses off for a block (public documentation names it, the module is private).
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass

#: Namespaces in which torch keeps its C functions; interception reports calls under these names.
C_NAMESPACES = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._special,
    torch._C._linalg,
    torch._C._fft,
    torch._C._sparse,
)

TensorBase = torch._C.TensorBase


def schemas(packet: Any) -> dict[str, Any]:
    """All schemas of an op (``torch.ops.aten.mul``) whose arguments hold a tensor, by overload name.

    ``_schema`` is private, yet the only source that knows every argument with its default, keyword-only ones included
    (``get_testing_overrides`` omits ``alpha``, ``rounding_mode``, ``keepdim`` of several functions).
    """
    found = {}
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        if any("Tensor" in str(argument.type) for argument in schema.arguments):
            found[overload] = schema
    return found


def overload_schema(overload: Any) -> Any:
    """The schema of one ``torch.ops`` overload."""
    return overload._schema


def set_grad_enabled(mode: bool) -> None:
    """``torch.set_grad_enabled`` as a plain call: the context manager costs ten times as much in the backward sweep."""
    torch._C._set_grad_enabled(mode)


def storage_use_count(tensor: torch.Tensor) -> int:
    """How many tensors and Python objects hold the storage of ``tensor`` (this call's own handle not counted).

    The only way to know that a gradient buffer is nobody else's, so that ``.grad`` may take it without a copy.
    """
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1


#: ``saved_tensors_hooks(False)`` is the innermost pair of hooks that the user has set (``torch.autograd.graph.saved_tensors_hooks``), or
#: None; torch offers no public way to ask.
saved_tensors_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks

#: Turns interception on again inside a block where it is off: for user code that is called from there.
EnableTorchFunction: Any = torch._C._EnableTorchFunction

#: What tells torch's checkpoint that unpackings belong to one backward pass. Before torch 2.10 it has none, and recomputes for each.
GraphExecGroup: Any = getattr(torch.utils.checkpoint, "GraphExecGroup", object)
get_graph_exec_group: Callable[[], Any] = getattr(torch._C, "_get_graph_exec_group", lambda: None)
set_graph_exec_group: Callable[[Any], None] = getattr(torch._C, "_set_graph_exec_group", lambda group: None)

#: What one checkpointed stretch remembers. Since torch 2.13 it saves its inputs natively, where a tracked one would lose its history.
CheckpointFrame: Any = torch.utils.checkpoint._CheckpointFrame

skip_one_hop: Callable[..., Any] | None = getattr(torch._C, "_skip_one_hop_torch_function", None)

#: The one place that every ``torch.autograd.Function.apply`` goes through, bound early or late: it never reaches interception.
SingleLevelFunction: Any = torch.autograd.function._SingleLevelFunction

#: Compiled code, whose calls never reach interception either.
ScriptFunction: Any = torch._C.ScriptFunction
ScriptMethod: Any = torch._C.ScriptMethod

#: ``register_script_builtin(function, "aten::name")``: TorchScript takes ``function`` for that op of torch's.
register_script_builtin: Callable[[Callable[..., Any], str], None] = torch.jit._builtins._register_builtin

#: The class of nested tensors in torch's jagged layout, which answers every call that it takes part in.
NestedTensor: Any = torch.nested._internal.nested_tensor.NestedTensor

#: Where torch's own ``gradcheck`` looks up the identity that takes a gradient away, and that identity: it knows native tensors only.
TorchFunctions: Any = torch._C._functions
UndefinedGrad: Any = TorchFunctions.UndefinedGrad

#: Whether calls reach ``__torch_function__`` of a tensor subclass here; a ``TorchFunctionMode`` is called either way.
is_torch_function_enabled: Callable[[], bool] = torch._C._is_torch_function_enabled

#: What every collective goes through, however its function was imported; None where torch was built without ``torch.distributed``.
ProcessGroup: Any = getattr(torch.distributed, "ProcessGroup", None)

#: Where DistributedDataParallel, and ``replicate`` that is made of it, gets ready for a forward pass.
PREPARE_FORWARD = "_pre_forward"


def in_data_parallel_forward(parameter: torch.Tensor) -> bool:
    """Whether the forward pass of a module with this parameter, wrapped by DistributedDataParallel or ``replicate``, is running."""
    active: Any = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    return active is not None and any(p is parameter for p in active._module_parameters)


#: The copying of a module to several devices, as DataParallel looks it up.
data_parallel_module: Any = sys.modules["torch.nn.parallel.data_parallel"]

#: Where torch's wrappers take over the parameters of a module, or a DTensor is made of a tensor: (module, class, method). The modules are
#: slow to import, so they are only named. Those of other releases of torch are passed over.
FULLY_SHARD = (("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup", "__init__"),)
FULLY_SHARDED_DATA_PARALLEL = (
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "__init__"),
)
SHARDED_FORWARD = (
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", "_pre_forward"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "forward"),
)
DTENSOR_MODULE = "torch.distributed.tensor._api"
MAKE_DTENSOR = (
    (DTENSOR_MODULE, "DTensor", "from_local"),
    ("torch.distributed.tensor.placement_types", "Shard", "_shard_tensor"),
    ("torch.distributed.tensor.placement_types", "_StridedShard", "_shard_tensor"),
    ("torch.distributed.tensor.placement_types", "Replicate", "_make_replicate_tensor"),
    ("torch.distributed.tensor.placement_types", "Replicate", "_replicate_tensor"),  # before torch 2.13
)


def creation_of(view: torch.Tensor) -> str:
    """How torch remembers that a plain view was made, where it forbids to write into it: ``"NO_GRAD_MODE"``, ``"MULTI_OUTPUT_NODE"``.

    The memory of a nested tensor is shown by such views: what is written there would never reach the nested tensor's own history.
    """
    return torch._C._autograd._get_creation_meta(view).name if view._base is not None else "DEFAULT"
