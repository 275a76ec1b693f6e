"""``DistributedDataParallel`` for tracked parameters: torch's wrapper, with our exchange in the place of its reducer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.nn.parameter import is_lazy

from nn.errors import ArgumentError, ExchangeError
from nn.parallel.agreement import check_same_model
from nn.parallel.buckets import GradBucket
from nn.parallel.captured import captured_exchange
from nn.parallel.exchange import Exchange
from nn.parallel.faults import buffers_sent_twice, named
from nn.tracking import track
from ops_registry.torch_private import (
    FIRST_BUCKET_BYTES,
    IGNORED_NAMES,
    OPTIMIZERS_IN_BACKWARD,
    REDUCER_METHODS,
    exchanges_in_python,
    tree_map_only,
)
from tracer.compiled.around import Around, capture_in_progress
from tracer.errors import UnsupportedError

#: More than any model has, in bytes.
_NO_LIMIT = 1 << 62

#: Arguments of torch's that are refused where they are given, each with the reason.
REFUSED = {
    "mixed_precision": "parameters of two precisions inside the wrapper are not supported. Use torch.autocast in the forward pass, or "
    "register_comm_hook(None, fp16_compress_hook) where the exchange is to be smaller",
    "delay_all_reduce_named_params": "delayed parameters are not supported. Leave the argument out: all parameters travel in buckets",
    "param_to_hook_all_reduce": "delayed parameters are not supported. Leave the argument out: all parameters travel in buckets",
}


class DistributedDataParallel(TorchDistributedDataParallel):
    """A module that is trained in several processes, each on its own part of every batch; ``torch.nn.parallel.DistributedDataParallel``.

    Takes torch's arguments, is an instance of torch's class, and has the same ``state_dict``. ``module`` is tracked, in place, if it is
    not. Each process runs forward and backward on its part; when ``backward`` returns, every ``.grad`` holds the mean over all processes,
    to the bit what torch's wrapper gives. The gradients leave in buckets while backward goes on. ``no_sync``, ``join`` and
    ``register_comm_hook`` are as in torch. Raises ``ExchangeError``

    - at construction, in all processes, where their models differ;
    - in ``backward``, where a parameter got no gradient and ``find_unused_parameters`` was not set, with its name; where another process is
      gone; where a second gradient of a parameter comes too late to be sent;
    - in each forward pass after a backward pass that raised: the process is no longer in step with the others.

    A backward pass that raises leaves ``.grad`` of the parameters as it was. A second ``backward`` through one forward pass is exchanged
    too. ``torch.autograd.grad`` exchanges nothing, as in torch.

    Raises ``UnsupportedError`` for ``mixed_precision``, delayed parameters, sparse gradients, a module on several devices, and
    ``backward(create_graph=True)``.
    """

    #: torch's class does not: ``tracer.recording.distributed`` refuses it for tracked parameters.
    hears_of_tracked = True
    #: What passes change, and no graph of a compiled step depends on (``tracer/compiled/reached.py``).
    beside_graphs = frozenset(
        {
            *("reducer", "logger", "modules_buffers", "named_module_buffers", "require_forward_param_sync"),
            *("_lazy_init_ran", "_has_rebuilt_buckets", "_static_graph_delay_allreduce_enqueued", "_comm_hooks"),
            *("_join_config", "process_group", "_divide_by_initial_world_size", "_authoritative_rank"),
        }
    )

    reducer: Any
    logger: Any

    def __init__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(TorchDistributedDataParallel.__init__).bind(self, module, *args, **kwargs).arguments
        _refuse(module, given)
        track(module)
        _check_models(module, given)
        super().__init__(module, *args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As torch; parameters are saved as plain ones."""
        track(state["_modules"]["module"])
        super().__setstate__(state)

    def _ddp_init_helper(
        self, parameters: Sequence[torch.Tensor], expect_sparse: Sequence[bool], _: Any, static_graph: bool
    ) -> None:
        """Where torch makes its reducer, when the wrapper is made and when it is unpickled."""
        first = FIRST_BUCKET_BYTES if self.bucket_bytes_cap_default else self.bucket_bytes_cap
        limits = list(getattr(self, "bucket_bytes_cap_list", ())) or [first, self.bucket_bytes_cap]
        whole = static_graph or not self.find_unused_parameters
        names = {id(p): name for name, p in self.module.named_parameters()}
        taken = {id(p) for p in parameters}
        self.reducer = Exchange(
            [names[id(p)] for p in parameters],
            parameters,
            [(names[id(p)], p) for p in self._module_parameters if id(p) not in taken],
            self.process_group,
            limits=limits,
            first_limits=[_NO_LIMIT] if whole and not getattr(self, "bucket_bytes_cap_list", ()) else limits,
            find_unused=self.find_unused_parameters,
            skip_unused=getattr(self, "skip_all_reduce_unused_params", False),
            keep_views=self.gradient_as_bucket_view,
            divide_flat=getattr(self, "batched_grad_copy", False),
        )
        self.logger = _Log(self)
        self._passing_sync_batchnorm_handle(self.module)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """As torch. In a step that is captured (``tracer.compile``) the module alone runs: all else is done around its graph."""
        around = capture_in_progress()
        if around is None:
            return super().forward(*inputs, **kwargs)
        captured = captured_exchange(self.reducer, around)
        grad_mode, synchronised = torch.is_grad_enabled(), self.require_backward_grad_sync
        exchanged = grad_mode and synchronised
        if captured.sends_buffers and self.forward_sync_buffers:
            around.kept |= {id(b): functools.partial(buffers_sent_twice, n) for n, b in self.module.named_buffers()}
        captured.sends_buffers = exchanged
        around.prepare.append(functools.partial(self._before_graph, grad_mode, synchronised, around))
        if self.device_ids:
            device = torch.device(self.device_type, self.device_ids[0])
            inputs, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(device), (inputs, kwargs))
        if exchanged:
            captured.passes.forward_begins()
        output = self.module(*inputs, **kwargs)
        if exchanged:
            captured.passes.forward_ends()
        return output

    def _before_graph(self, grad_mode: bool, synchronised: bool, around: Around) -> None:
        """What torch does before a forward pass, for one that is in a graph, with the settings that it had there."""
        if self._join_config.enable and len(around.prepare) > 1:
            raise ExchangeError(
                "a compiled step inside join() calls modules in DistributedDataParallel more than once: the processes without data cannot "
                "follow it. Compile a step for each call."
            )
        if self._check_sync_bufs_post_fwd():
            raise UnsupportedError("a compiled step does not run a hook that sends buffers after the forward pass")
        now = self.require_backward_grad_sync
        self.require_backward_grad_sync = synchronised
        try:
            with torch.set_grad_enabled(grad_mode):
                self._pre_forward()
        finally:
            self.require_backward_grad_sync = now
        self.require_forward_param_sync = grad_mode and synchronised
        if self.require_forward_param_sync:
            self.reducer.attach()

    def _post_forward(self, output: Any) -> Any:
        """As torch, without the node that it puts behind each output: our backward pass knows beforehand which parameters it comes to."""
        if self._check_sync_bufs_post_fwd():
            self._sync_buffers()
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            self.require_forward_param_sync = True
            self.reducer.prepare_for_backward(())
        else:
            self.require_forward_param_sync = False
        return output

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Let ``hook(state, bucket)`` exchange each bucket; torch's own hooks, or one of the user's.

        ``bucket`` has the methods of ``torch.distributed.GradBucket``. The hook returns a ``torch.futures.Future`` of the tensor of shape
        (n,) that takes the place of ``bucket.buffer()``; what it gives is not divided by the number of processes. Raises
        ``ExchangeError`` for a second hook, ``ArgumentError`` for one that does not take ``(state, bucket)``, or says that it gives
        something else.
        """
        _check_hook(hook)
        self.reducer.register_hook(state, hook)
        self._comm_hooks.append((hook, state))

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = (
            default_hooks.fp16_compress_hook if comm_hook_type.name == "FP16_COMPRESS" else default_hooks.allreduce_hook
        )
        self.register_comm_hook(self.process_group, hook)

    def _setup_in_backward_optimizers(self) -> None:
        if any(hasattr(p, OPTIMIZERS_IN_BACKWARD) for p in self._module_parameters):
            raise UnsupportedError(
                "DistributedDataParallel of tracked parameters does not run optimisers inside backward "
                "(_apply_optimizer_in_backward): step after backward."
            )


class _Log:
    """In the place of torch's ``Logger``, which reads the reducer in C++: what is asked of it, in short."""

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        exchange: Exchange = wrapper.reducer
        self._texts = {"module_name": type(wrapper.module).__name__, "backend_name": dist.get_backend(exchange.group)}
        self._exchange = exchange

    def _get_ddp_logging_data(self) -> Any:
        group, buckets = self._exchange.group, self._exchange.buckets
        sizes = ", ".join(str(b.flat.numel() * b.flat.element_size()) for b in buckets)
        numbers = {"world_size": group.size(), "rank": group.rank(), "num_parameter_tensors": len(self._exchange.names)}
        return SimpleNamespace(strs_map={**self._texts, "bucket_sizes": sizes}, ints_map=numbers)

    def set_error_and_log(self, message: str) -> None:
        """An error tells of itself."""

    def set_runtime_stats_and_log(self) -> None:
        """No times are sampled."""

    def _set_uneven_input_join(self) -> None:
        self._texts["join_uneven_inputs"] = "1"

    def _set_static_graph(self) -> None:
        self._texts["static_graph"] = "1"


def _check_hook(hook: Any) -> None:
    """Raise ``ArgumentError`` for what is no communication hook."""
    if not callable(hook):
        raise ArgumentError(f"a communication hook is a function of (state, bucket), got {type(hook).__name__}")
    signature = inspect.signature(hook)
    try:
        bound = signature.bind(None, None)
    except TypeError as error:
        raise ArgumentError(f"a communication hook is called with (state, bucket): {error}") from error
    bucket = signature.parameters[list(bound.arguments)[-1]].annotation
    result = signature.return_annotation
    unsaid = (inspect.Signature.empty, Any)
    if not (isinstance(bucket, str) or bucket in (*unsaid, getattr(dist, "GradBucket", None), GradBucket)):
        raise ArgumentError(
            f"a communication hook gets a torch.distributed.GradBucket, and this one says of its argument: {bucket}"
        )
    if not (isinstance(result, str) or result in unsaid or "Future" in str(result)):
        raise ArgumentError(
            f"a communication hook returns a torch.futures.Future[torch.Tensor], and this one says: {result}"
        )


def _refuse(module: torch.nn.Module, given: Mapping[str, Any]) -> None:
    """Raise for what the exchange does not do: ``UnsupportedError``, or ``ArgumentError`` where it is no module with parameters."""
    if not dist.is_available():
        raise UnsupportedError("DistributedDataParallel needs torch.distributed, which this torch was built without")
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"DistributedDataParallel wraps a torch.nn.Module, got {type(module).__name__}")
    lazy = [name for name, p in module.named_parameters() if is_lazy(p)]
    if lazy:
        raise ArgumentError(
            f"DistributedDataParallel was given a module whose parameters have no shape yet ({named(lazy)}): run it once on a batch "
            f"before it is wrapped."
        )
    for name, reason in REFUSED.items():
        if given.get(name) is not None:
            raise UnsupportedError(f"DistributedDataParallel of tracked parameters was given {name}: {reason}.")
    if not all(hasattr(TorchDistributedDataParallel, name) for name in REDUCER_METHODS):
        raise UnsupportedError(
            f"torch {torch.__version__} has another DistributedDataParallel than the one that glassgrad stands on"
        )
    embeddings = torch.nn.Embedding | torch.nn.EmbeddingBag
    sparse = [name for name, part in module.named_modules() if isinstance(part, embeddings) and part.sparse]
    if sparse:
        raise UnsupportedError(
            f"DistributedDataParallel of tracked parameters exchanges dense gradients only, and {', '.join(sparse)} gives sparse ones: "
            f"make it with sparse=False."
        )
    devices = {str(p.device) for p in module.parameters()}
    if len(devices) > 1 or len(given.get("device_ids") or ()) > 1:
        raise UnsupportedError(
            f"DistributedDataParallel of tracked parameters takes a module on one device, and got parameters on {sorted(devices)}, "
            f"device_ids={given.get('device_ids')}: start one process for each device (torchrun --nproc-per-node)."
        )
    if exchanges_in_python():
        raise UnsupportedError(
            "torch._dynamo.config.optimize_ddp is 'python_reducer', which exchanges gradients from torch's own autograd: set it to False"
        )


def _check_models(module: torch.nn.Module, given: Mapping[str, Any]) -> None:
    mesh, group = given.get("device_mesh"), given.get("process_group")
    ignored = set(getattr(module, IGNORED_NAMES, ()))
    if not given.get("init_sync", True) or not any(
        n not in ignored for n, p in module.named_parameters() if p.requires_grad
    ):
        return
    if group is None:
        group = dist.group.WORLD if mesh is None else mesh.get_group(mesh_dim=0)
    buffers = given.get("broadcast_buffers") is not False or given.get("forward_sync_buffers") is not None
    if group is not None:  # without one torch's own constructor tells what is missing
        check_same_model(module, ignored, group, buffers=buffers)
