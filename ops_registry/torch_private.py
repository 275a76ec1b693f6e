"""Every private torch name that glassgrad needs, in one place, with the reason why no public one serves.

Public names are preferred everywhere else. When a torch release renames something, this is the file to mend.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch._higher_order_ops
import torch.fx.experimental.proxy_tensor
import torch.nested._internal.nested_tensor
import torch.utils._pytree
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

#: The instances of compiled classes, as torch's C++ knows them and as Python sees them; compiled modules; a result still being computed.
ScriptObject: Any = torch._C.ScriptObject
ScriptClass: Any = torch.jit.RecursiveScriptClass
ScriptModule: Any = torch.jit.RecursiveScriptModule
ScriptFuture: Any = torch._C.Future

#: What a scripted module holds, read from the C++ module that a compiled method belongs to: no Python module need be at hand there.
ParameterDict: Any = torch._C.ParameterDict
BufferDict: Any = torch._C.BufferDict
ModuleDict: Any = torch._C.ModuleDict

#: torch's functions that trace; the last one is what its ONNX exporter calls.
TRACERS: tuple[Any, ...] = (torch.jit.trace, torch.jit.trace_module, torch.jit._get_trace_graph)

#: ``register_script_builtin(function, "aten::name")``: TorchScript takes ``function`` for that op of torch's.
register_script_builtin: Callable[[Callable[..., Any], str], None] = torch.jit._builtins._register_builtin

#: The class of nested tensors in torch's jagged layout, which answers every call that it takes part in.
NestedTensor: Any = torch.nested._internal.nested_tensor.NestedTensor

#: Where torch's own ``gradcheck`` looks up the identity that takes a gradient away, and that identity: it knows native tensors only.
TorchFunctions: Any = torch._C._functions
UndefinedGrad: Any = TorchFunctions.UndefinedGrad

#: Whether calls reach ``__torch_function__`` of a tensor subclass here; a ``TorchFunctionMode`` is called either way.
is_torch_function_enabled: Callable[[], bool] = torch._C._is_torch_function_enabled

#: The leaves of any nest of containers that torch knows, and the nest made again of others: what torch's own functions that take nests use.
tree_flatten: Callable[[Any], tuple[list[Any], Any]] = torch.utils._pytree.tree_flatten
tree_unflatten: Callable[[list[Any], Any], Any] = torch.utils._pytree.tree_unflatten

#: Where torch.compile looks at a tensor for the first time, its errors, what it does with code that it cannot compile, and the
#: list of modules that it leaves alone. Modules by name: loading them takes seconds, and most programs never need them.
DYNAMO_BUILDER = "torch._dynamo.variables.builder"
DYNAMO_ERRORS = "torch._dynamo.exc"
DYNAMO_TYPES = "torch._dynamo.types"
DYNAMO_SKIPPED = "torch._dynamo.trace_rules"

#: What traces into ATen graphs, for ``make_fx`` and ``torch.export``.
ProxyMode: Any = torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode


#: The class of operators that take functions: what ``torch.cond`` and its kin are made of.
HigherOrderOperator: Any = torch._ops.HigherOrderOperator


def control_flow(name: str) -> Callable[..., Any] | None:
    """One of torch's control flow functions; ``scan``, ``associative_scan`` and ``map`` have private names only."""
    return getattr(importlib.import_module(f"torch._higher_order_ops.{name}"), name, None)
