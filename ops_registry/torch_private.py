"""Every private torch name that glassgrad needs, in one place, with the reason why no public one serves.

Public names are preferred everywhere else. When a torch release renames something, this is the file to mend.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch._higher_order_ops
import torch._library.custom_ops
import torch._prims_common
import torch._subclasses.fake_tensor
import torch.autograd.forward_ad
import torch.distributed
import torch.fx.experimental.proxy_tensor
import torch.nested._internal.nested_tensor
import torch.utils._device
import torch.utils._python_dispatch
import torch.utils._pytree
import torch.utils.checkpoint

#: Turns interception by subclasses off for a block (public documentation names it, the module is private).
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass

#: The same, and modes off too.
NativeDisableTorchFunction: Any = torch._C.DisableTorchFunction

#: Namespaces in which torch keeps its C functions, by their names; interception reports calls under these.
NAMED_C_NAMESPACES: dict[str, Any] = {
    "torch._C._VariableFunctions": torch._C._VariableFunctions,
    "torch._C._nn": torch._C._nn,
    "torch._C._special": torch._C._special,
    "torch._C._linalg": torch._C._linalg,
    "torch._C._fft": torch._C._fft,
    "torch._C._sparse": torch._C._sparse,
}
C_NAMESPACES = tuple(NAMED_C_NAMESPACES.values())

#: torch's own switch, beneath the one that we put in its place so that tracked tensors follow it.
set_anomaly_enabled: Callable[[bool, bool], None] = torch._C.set_anomaly_enabled

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
    # All Python names share one handle, which counts once above. Three know it here: the storage, this frame, the question.
    shared = sys.getrefcount(storage) > 3
    return torch._C._storage_Use_Count(storage._cdata) - 1 + shared


#: How many hold a tensor: Python, however many names it has there, counts once; each view holds its base, each wrapper what is beneath.
use_count: Callable[[torch.Tensor], int] = TensorBase._use_count


def storage_key(tensor: torch.Tensor) -> int:
    """What tells the storage of ``tensor`` from all others that are alive.

    The address of its data does not: it is 0 for every meta tensor and every fake one, and for every empty one.
    """
    return tensor.untyped_storage()._cdata


#: ``saved_tensors_hooks(False)`` is the innermost pair of hooks that the user has set (``torch.autograd.graph.saved_tensors_hooks``), or
#: None; torch offers no public way to ask.
saved_tensors_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks

#: Takes the innermost pair away, and puts one there again: what is saved in between is no business of theirs.
pop_saved_tensors_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
push_saved_tensors_hooks: Callable[[Any, Any], None] = torch._C._autograd._push_saved_tensors_default_hooks

#: Turns interception on again inside a block where it is off: for user code that is called from there.
EnableTorchFunction: Any = torch._C._EnableTorchFunction

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


def onednn_takes_bfloat16() -> bool:
    """Whether oneDNN's kernels take bfloat16 on this processor, in which torch then runs an LSTM through them."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and supported()


#: What ``torch.set_default_tensor_type`` calls: it takes none but torch's own classes of tensor types.
set_default_tensor_type: Callable[[Any], None] = torch._C._set_default_tensor_type
#: Where ``torch.set_default_device`` lists the functions that it gives a device.
DeviceContexts: Any = torch.utils._device

#: The ``__torch_function__`` of classes that answer no call; torch never calls it.
disabled_torch_function: Any = torch._C._disabled_torch_function_impl

#: What ``Module.to``, ``to_empty`` and their like go through: each parameter is given to a function, and replaced by what that returns.
module_apply: Callable[..., torch.nn.Module] = torch.nn.Module._apply
#: What ``Module.load_state_dict`` calls for each submodule: with ``assign=True`` it makes new parameters.
module_load: Callable[..., None] = torch.nn.Module._load_from_state_dict

#: How many ``TorchDispatchMode`` are on here: each sees every call of a backward pass. How many ``TorchFunctionMode``, and which: the
#: device of ``torch.set_default_device`` is one as well.
count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
count_modes: Callable[[], int] = torch._C._len_torch_function_stack
function_modes: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
#: Switches of torch's backends as C++ knows them. The public ones (``torch.backends``) take ten times as long, and
#: ``torch.get_float32_matmul_precision`` raises where somebody has set ``fp32_precision``, of which ``precision_of`` tells.
SWITCHES = ("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "mkldnn_enabled", "mkldnn_deterministic", "flash_sdp_enabled",
            "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled", "math_sdp_allow_fp16_bf16_reduction")  # fmt: skip
asks_of_switches: list[Callable[[], bool]] = [getattr(torch._C, f"_get_{name}") for name in SWITCHES]
precision_of: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
#: In which order kernels of attention are tried.
attention_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order

#: Whether calls reach ``__torch_function__`` of a tensor subclass here; a ``TorchFunctionMode`` is called either way.
is_torch_function_enabled: Callable[[], bool] = torch._C._is_torch_function_enabled
#: Whether autocast is on for some device: one cheap question in place of one for each.
is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


def has_autocast_kernel(name: str, device: str) -> bool:
    """Whether autocast treats ``aten::name`` on ``device`` in some overload. The dispatcher alone knows torch's lists."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else packet.overloads()
    names = [f"aten::{name}" if overload == "default" else f"aten::{name}.{overload}" for overload in overloads]
    key = f"Autocast{device.upper()}"
    # TorchScript has ops that the dispatcher has not.
    known = [full for full in names if torch._C._dispatch_has_kernel(full)]
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for full in known)


_functorch = torch._C._functorch

#: The wrappers of ``torch.func``: a tensor that stands for a batch of them inside ``torch.vmap``, or that ``torch.func.grad`` follows.
is_batched: Callable[[torch.Tensor], bool] = _functorch.is_batchedtensor
is_followed: Callable[[torch.Tensor], bool] = _functorch.is_gradtrackingtensor
batch_level_of: Callable[[torch.Tensor], int] = _functorch.maybe_get_level
batch_dim_of: Callable[[torch.Tensor], int] = _functorch.maybe_get_bdim
unwrapped: Callable[[torch.Tensor], torch.Tensor] = _functorch.get_unwrapped
#: ``add_batch_dim(tensor, dim, level)``: ``dim`` of ``tensor`` is the batch of that level.
add_batch_dim: Callable[[torch.Tensor, int, int], torch.Tensor] = _functorch._add_batch_dim
#: ``remove_batch_dim(tensor, level, batch_size, dim)``: the batch of that level as dimension ``dim``.
remove_batch_dim: Callable[[torch.Tensor, int, int, int], torch.Tensor] = _functorch._remove_batch_dim

#: The modules where ``torch.func`` looks up its own parts at every call, however its public functions were bound.
vmap_parts: Any = torch._functorch.vmap
transform_parts: Any = torch._functorch.eager_transforms

#: Where ``Function.apply`` goes inside a transform, and what a Function's ``vmap`` method is told.
custom_function_call: Any = torch._functorch.autograd_function.custom_function_call
VmapInfo: Any = torch._functorch.autograd_function.VmapInfo

#: The number of the innermost open transform of torch's, ``torch.vmap`` among them; None outside of all.
transform_level: Callable[[], int | None] = _functorch.maybe_current_level


def randomness_of_level() -> str:
    """What the innermost ``torch.vmap`` was told about random numbers: "error", "different" or "same"."""
    return torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter().randomness()


#: torch's own answers to what hooks ask about the backward pass around them. torch's Python code (``register_multi_grad_hook``, module
#: trackers, FSDP) asks by these names alone, so ours stand in their place (``tracer/install.py``).
native_graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
native_will_execute: Callable[[Any], bool] = torch._C._will_engine_execute_node
native_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
native_checkpoint_is_valid: Callable[[], bool] = torch.autograd._is_checkpoint_valid
torch_c: Any = torch._C

#: The class of torch's engine, whose one instance queues callbacks and runs every native backward pass, and the class that holds it.
ImperativeEngine: Any = torch._C._ImperativeEngine
Variable: Any = torch.autograd.Variable

#: torch's functions that put a dual number together and take it apart (``torch.autograd.forward_ad``); interception reports them.
make_dual: Any = torch._VF._make_dual
unpack_dual: Any = torch._VF._unpack_dual


def dual_level() -> int:
    """The innermost level of forward-mode AD (``torch.autograd.forward_ad.dual_level``), -1 outside of any."""
    return torch.autograd.forward_ad._current_level


#: What torch's library of ops asks at each call before it records it with the backward that the op brings.
any_requires_grad: Callable[..., bool] = torch._C._any_requires_grad

#: The implementations of ops that are written in Python, as ``namespace/op.overload/key``: torch tells them from those in C++ nowhere else.
python_kernels: set[str] = torch.library._impls
#: ``has_kernel("mylib::op", "Autograd")``: whether an op has an implementation of its own beneath a dispatch key.
has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
#: The object that ``torch.library.custom_op`` made for an overload, or None: it alone knows whether a backward was registered.
library_op_definition: Callable[[Any], Any] = torch._library.custom_ops._maybe_get_opdef


def resolve_overload(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The overload that a call of a ``torch.ops`` packet means; None where it fits none. torch decides it inside the call."""
    overloads = packet.overloads()
    if len(overloads) == 1:
        return getattr(packet, overloads[0])
    try:
        return getattr(packet, torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs) or "default")
    except RuntimeError:
        return None


#: What every collective goes through, however its function was imported; None where torch was built without ``torch.distributed``.
ProcessGroup: Any = getattr(torch.distributed, "ProcessGroup", None)

#: How torch's DistributedDataParallel deals its parameters out to buckets: gradients are equal to the last bit only in equal buckets.
bucket_assignment: Any = getattr(torch.distributed, "_compute_bucket_assignment_by_size", None)
#: The size in bytes of the bucket that leaves first, where the user gives none.
FIRST_BUCKET_BYTES: int = getattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 1 << 20)

#: The methods of torch's DistributedDataParallel that ours has in other words: there its reducer is made, and is told of a forward pass.
REDUCER_METHODS = (
    *("_ddp_init_helper", "_post_forward", "_setup_in_backward_optimizers", "_register_builtin_comm_hook"),
    *("_check_sync_bufs_post_fwd", "_sync_buffers", "_passing_sync_batchnorm_handle"),
)
#: The attribute of a module in which DistributedDataParallel finds the names of parameters and buffers that it is to leave alone.
IGNORED_NAMES = "_ddp_params_and_buffers_to_ignore"
#: The attribute of a parameter whose optimiser steps inside backward.
OPTIMIZERS_IN_BACKWARD = "_in_backward_optimizers"


def exchanges_in_python() -> bool:
    """Whether torch's compiler is to exchange the gradients, and not the wrapper."""
    return torch._dynamo.utils.get_optimize_ddp_mode() == "python_reducer"


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


#: The leaves of any nest of containers that torch knows, and the nest made again of others: what torch's own functions that take nests use.
tree_flatten: Callable[..., tuple[list[Any], Any]] = torch.utils._pytree.tree_flatten
tree_unflatten: Callable[[Iterable[Any], Any], Any] = torch.utils._pytree.tree_unflatten
tree_leaves: Callable[[Any], list[Any]] = torch.utils._pytree.tree_leaves
tree_map: Callable[..., Any] = torch.utils._pytree.tree_map
tree_map_only: Callable[..., Any] = torch.utils._pytree.tree_map_only
tree_any_only: Callable[..., bool] = torch.utils._pytree.tree_any_only

#: Where torch.compile looks at a tensor for the first time, its errors, what it does with code that it cannot compile, the modules that it
#: leaves alone, and its settings. Modules by name: loading them takes seconds, and most programs never need them.
DYNAMO_BUILDER = "torch._dynamo.variables.builder"
DYNAMO_ERRORS = "torch._dynamo.exc"
DYNAMO_TYPES = "torch._dynamo.types"
DYNAMO_SKIPPED = "torch._dynamo.trace_rules"
DYNAMO_SETTINGS = "torch._dynamo.config"
#: What ``functorch.compile`` offers of torch's ahead-of-time autograd: (module, nothing, function).
AOT_FUNCTION = (("torch._functorch.aot_autograd", "", "aot_function"),)

#: What traces into ATen graphs, for ``make_fx`` and ``torch.export``.
ProxyMode: Any = torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode

#: The class of operators that take functions: what ``torch.cond`` and its kin are made of.
HigherOrderOperator: Any = torch._ops.HigherOrderOperator


def control_flow(name: str) -> Callable[..., Any] | None:
    """One of torch's control flow functions; ``scan``, ``associative_scan`` and ``map`` have private names only."""
    return getattr(importlib.import_module(f"torch._higher_order_ops.{name}"), name, None)


#: The number that torch's own autograd gives the next node of this thread: which calls came before, and which after.
next_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr

# ---------------------------------------------------------------------- a step as a graph of ATen ops
#: Functionalisation, switched on by hand. ``torch.func.functionalize`` puts an interpreter around it that loses ``_base`` of views, and
#: refuses custom Functions. A wrapper's class is ``torch.Tensor``: class assignment, views and version counters work on it.
to_functional: Callable[[torch.Tensor], torch.Tensor] = torch._to_functional_tensor
from_functional: Callable[[torch.Tensor], torch.Tensor] = torch._from_functional_tensor
is_functional: Callable[[torch.Tensor], bool] = torch._is_functional_tensor
sync_functional: Callable[[torch.Tensor], None] = torch._sync
enable_functionalization: Callable[..., None] = torch._enable_functionalization
disable_functionalization: Callable[[], None] = torch._disable_functionalization
#: Whether anything was written into a wrapper's values, or its shape or strides were changed in place, since it was made.
values_were_written: Callable[[torch.Tensor], bool] = torch._functionalize_has_data_mutation
metadata_was_written: Callable[[torch.Tensor], bool] = torch._functionalize_has_metadata_mutation

#: Exchanges what two tensor objects stand for, so that every reference to either, wherever it is held, means the other's values. The public
#: ``torch.utils.swap_tensors`` exchanges classes and attributes too, and refuses a tensor that a weak reference points to.
swap_values: Callable[[torch.Tensor, torch.Tensor], None] = torch._C._swap_tensor_impl

#: Whether tensors are still of the class, dtype, device, shape and strides that they were of, asked of all at once in C++; what
#: torch.compile asks before it takes a compiled graph. From Python it would cost fifteen times as much.
TensorGuards: Any = torch._C._dynamo.guards.TensorGuards

#: Tensors with shapes and no values. What is asked of them that they cannot answer: a value, a shape that depends on values, an op of which
#: nobody has said what it returns.
FakeTensorMode: Any = torch._subclasses.fake_tensor.FakeTensorMode
NO_DATA_ERRORS: Any = torch._subclasses.fake_tensor.DataDependentOutputException
NO_SHAPE_ERRORS: Any = torch._subclasses.fake_tensor.DynamicOutputShapeException
UNKNOWN_TO_FAKE: Any = (
    torch._subclasses.fake_tensor.UnsupportedFakeTensorException,
    torch._subclasses.fake_tensor.UnsupportedOperatorException,
)

#: Whether results lie with channels last, as torch's kernels decide it.
suggest_memory_format: Callable[[torch.Tensor], torch.memory_format] = torch._prims_common.suggest_memory_format


def inductor() -> Any:
    """torch's compiler of ATen graphs, ``torch._inductor``; loading it takes seconds, so it is loaded when it is wanted."""
    return importlib.import_module("torch._inductor")


#: Autocast off for a block whatever the device, as in backward passes and around graphs that have its casts; the public one is for one.
DisableAutocast: Any = torch._C._DisableAutocast

#: Generates the code of a graph that takes its inputs in a list and empties that, so that each can go after its last use. None in a torch
#: that has none: then inputs live as long as the call.
BoxedCodeGen: Any = getattr(torch.fx.graph, "_BoxedCodeGen", None)


def split_for_memory(
    graph: torch.fx.GraphModule, inputs: list[torch.Tensor], results: int, merge_duplicates: bool
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """torch's partitioner: a joint graph as forward and backward graph, which saves what is cheapest to save and computes the rest again.

    It knows cotangents by names that begin with ``tangents``. The forward graph's outputs are the first ``results`` and what is saved.
    """
    partitioners = importlib.import_module("torch._functorch.partitioners")
    with importlib.import_module("torch._functorch.config").patch(cse=merge_duplicates):
        return partitioners.min_cut_rematerialization_partition(graph, inputs, num_fwd_outputs=results)


def split_for_inductor(
    graph: torch.fx.GraphModule, inputs: list[torch.Tensor], results: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The same behind inductor's own passes over joint graphs, after which random numbers are made from seeds and can be made again."""
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    with compile_fx.V.set_fake_mode(torch._guards.detect_fake_mode(inputs)):  # seeds of several draws are made together
        return compile_fx.partition_fn(graph, inputs, num_fwd_outputs=results)


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """How inductor writes ops by others: the partitioner knows what those cost."""
    return importlib.import_module("torch._inductor.decomposition").select_decomp_table()


def compile_half(
    graph: torch.fx.GraphModule, inputs: list[Any], *, backward: bool
) -> tuple[Callable[[list[torch.Tensor]], Any], list[Any]]:
    """One half of a joint graph through inductor, and the strides that its results then have (None for one as in the graph).

    ``torch._inductor.compile`` decomposes and functionalises again, and holds all inputs to the end: it takes no list to empty.
    """
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    context = torch._guards.TracingContext(torch._guards.detect_fake_mode(inputs))
    with (
        torch._guards.tracing(context),
        compile_fx.V.set_fake_mode(context.fake_mode),
        torch._guards.TracingContext.report_output_strides() as strides,
    ):
        return compile_fx.compile_fx_inner(graph, inputs, is_backward=backward, is_inference=False), list(strides or [])


def sources_of_sizes(name: str, dims: int) -> tuple[Any, list[Any]]:
    """Where a tensor, and each of its sizes and then of its strides, comes from: what conditions on symbolic sizes are written in.

    There is no public way to say it. Loading the module takes seconds; torch loads it itself when it traces.
    """
    known = importlib.import_module("torch._dynamo.source")
    tensor = known.ConstantSource(name)
    kinds = known.TensorProperty.SIZE, known.TensorProperty.STRIDE
    return tensor, [known.TensorPropertySource(tensor, kind, dim) for kind in kinds for dim in range(dims)]


#: The class of ``torch.ops.aten.add.Tensor`` and its like.
OpOverload: Any = torch._ops.OpOverload
#: What a schedule of learning rates sets in an optimiser when that steps, and asks for before it warns of a wrong order.
HAS_STEPPED = "_opt_called"


def bare_op(overload: Any) -> Callable[..., Any]:
    """What an overload of ``torch.ops`` calls, in C++: a quarter of the time of a call on small tensors is spent on the way there."""
    return overload._op


def rename_node(node: torch.fx.Node, name: str) -> None:
    """Give a node of an fx graph another name, with a number where it is taken."""
    node._rename(name)


#: Sees every call below autograd and functionalisation, on tensors that are then those of the graph.
TorchDispatchMode: Any = torch.utils._python_dispatch.TorchDispatchMode
#: Real tensors in a block while a step is captured.
disable_modes: Callable[[], AbstractContextManager[Any]] = torch.utils._python_dispatch._disable_current_modes


@contextmanager
def cudnn_off() -> Iterator[None]:
    """torch's own kernels in place of cuDNN's. The public ``torch.backends.cudnn.flags`` changes other switches besides."""
    before = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)
