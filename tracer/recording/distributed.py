"""Training in several processes: what torch's wrappers would do to tracked parameters in silence is refused by name.

torch's wrappers hear of gradients from torch's own autograd alone. Round tracked parameters each process would train for itself, or the
process would crash. The wrapper for tracked parameters, ``nn.parallel.DistributedDataParallel``, says that it hears of theirs. Wrappers
that put tensors of their own in the place of the parameters (DTensor) would drop the tracked ones. A collective that torch records no
history of leaves a history that raises in backward. ``tracer.install`` puts these in the place of torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, tree_leaves
from tracer.errors import UnsupportedError
from tracer.graph import enter
from tracer.node import Leaf, RaisingNode
from tracer.recording.parents import DIFFERENTIABLE, any_node, holds_tracked, nodes_in
from tracer.recording.views import prepare, rewrite
from tracer.tracked_tensor import Tensor

#: What can be done in the place of a wrapper.
REMEDY = (
    "Wrap the module by nn.parallel.DistributedDataParallel (of glassgrad's nn), which takes the arguments of torch's and averages the "
    "gradients of tracked parameters; or train the module without tracking it."
)


#: Why the wrappers do not work.
NOT_AVERAGED = (
    "it hears of gradients from torch's own autograd alone, and each process would train for itself, in silence"
)
REPLACED = "it puts tensors of its own in their place, and what is computed with those is not recorded"

#: The wrappers, by the module of the class that they give what they wrap.
WRAPPERS = {
    "torch.nn.parallel.distributed": ("DistributedDataParallel", NOT_AVERAGED),
    "torch.distributed._composable.replicate": ("replicate, a DistributedDataParallel,", NOT_AVERAGED),
    "torch.distributed._composable.replicate_with_fsdp": ("replicate, which is data parallel,", REPLACED),
    "torch.distributed.fsdp": ("fully_shard or FullyShardedDataParallel", REPLACED),
}


def refuse(wrapper: str, reason: str) -> NoReturn:
    """Raise ``UnsupportedError`` for a wrapper of tracked parameters."""
    raise UnsupportedError(f"{wrapper} does not work with tracked parameters: {reason}. {REMEDY}")


def hears_of_tracked(wrapper: Any) -> bool:
    """Whether a wrapper, one of torch's by its class, takes the gradients of tracked parameters from our own backward pass."""
    return getattr(type(wrapper), "hears_of_tracked", False)


def refuse_wrapped(module: torch.nn.Module) -> None:
    """Raise ``UnsupportedError`` where a module, or one inside it, is wrapped for training in several processes."""
    kinds: set[Any] = {type(part) for part in module.modules() if not hears_of_tracked(part)}
    for kind in kinds:
        found = _wrapper_of(kind)
        if found is not None:
            refuse(*found)


@functools.cache
def _wrapper_of(kind: type) -> tuple[str, str] | None:
    for base in kind.__mro__:
        for place, found in WRAPPERS.items():
            if base.__module__ == place or base.__module__.startswith(f"{place}."):
                return found
    return None


def refuse_replacement(module: torch.nn.Module, name: str, parameter: Any) -> None:
    """A hook on the registration of parameters: raises where a DTensor takes the place of a tracked one."""
    replaced: Any = module._parameters.get(name)
    if type(replaced) is Tensor and type(parameter).__module__.startswith("torch.distributed."):
        refuse("distribute_module or parallelize_module", REPLACED)


def _any_tracked(values: Iterable[Any]) -> bool:
    return any(type(value) is Tensor for value in values)


def refusing_to_reduce(init: Callable[..., None]) -> Callable[..., None]:
    """``DistributedDataParallel.__init__``, which raises where a parameter is tracked: its reducer would crash the process."""

    @functools.wraps(init)
    def constructed(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if isinstance(module, torch.nn.Module) and not hears_of_tracked(self) and _any_tracked(module.parameters()):
            refuse("DistributedDataParallel (or replicate, which is made of it)", NOT_AVERAGED)
        init(self, module, *args, **kwargs)

    return constructed


def refusing_to_prepare(prepare_forward: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper's method that gets the inputs of a forward pass, raising for tracked ones, and for parameters that were tracked since.

    Its own parameters would be adopted by our backward pass, of which the wrapper does not hear.
    """

    @functools.wraps(prepare_forward)
    def prepared(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not hears_of_tracked(self):
            if _any_tracked(getattr(self, "_module_parameters", ())):
                refuse("DistributedDataParallel (or replicate, which is made of it)", NOT_AVERAGED)
            if _any_tracked(tree_leaves((inputs, kwargs))):
                raise UnsupportedError(
                    "a module wrapped by DistributedDataParallel, replicate, fully_shard or FullyShardedDataParallel got a tracked tensor: "
                    "the gradients of its parameters would come from our backward pass, of which the wrapper does not hear, and each "
                    "process would train for itself. Give it a plain tensor (x.data), or do not wrap the module."
                )
        return prepare_forward(self, *inputs, **kwargs)

    return prepared


def refusing_to_copy(replicate: Callable[..., Any]) -> Callable[..., Any]:
    """The copying of a module to several devices in ``DataParallel``, which raises where gradients are to come back from there."""

    @functools.wraps(replicate)
    def copied(network: torch.nn.Module, devices: Any, detach: bool = False) -> Any:
        if not detach and _any_tracked(network.parameters()):
            refuse("DataParallel over several devices", "the copies it makes of them are not recorded")
        return replicate(network, devices, detach)

    return copied


def refusing_to_shard(init: Callable[..., None]) -> Callable[..., None]:
    """Where ``fully_shard`` takes its parameters over, raising for tracked ones."""

    @functools.wraps(init)
    def constructed(self: Any, params: list[Any], *args: Any, **kwargs: Any) -> None:
        if _any_tracked(params):
            refuse("fully_shard (or replicate, which is made of it)", REPLACED)
        init(self, params, *args, **kwargs)

    return constructed


def refusing_to_flatten(init: Callable[..., None]) -> Callable[..., None]:
    """``FullyShardedDataParallel.__init__``, which raises where a parameter is tracked."""

    @functools.wraps(init)
    def constructed(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if _any_tracked(module.parameters()):
            refuse("FullyShardedDataParallel", REPLACED)
        init(self, module, *args, **kwargs)

    return constructed


def refusing_to_distribute(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a part of a DTensor out of a tensor, raising for a tracked one."""

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        if _any_tracked(args) or _any_tracked(kwargs.values()):
            raise UnsupportedError(
                "a DTensor (distribute_tensor, parallelize_module, DTensor.from_local) cannot be made of a tracked tensor: what is "
                f"computed with it would not be recorded. Give it a plain tensor (x.data), or leave DTensors out. {REMEDY}"
            )
        return function(*args, **kwargs)

    return made


#: The methods of a process group that write into their first argument.
COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "recv", "recv_anysource", "gather", "scatter"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single"),
    *("all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
)


def without_history(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A collective of a process group: what it writes has a history that raises in backward, where a gradient would be wanted.

    torch warns there. The leaves that it writes into, themselves or through views, stay leaves.
    """

    def error() -> Exception:
        return UnsupportedError(
            f"backward reached what the collective {name} of torch.distributed has written. It has no history: the gradients that the "
            f"other processes want would be lost. Use torch.distributed.nn.functional, whose collectives are differentiable; or call it "
            f"on x.detach(), or under torch.no_grad()."
        )

    @functools.wraps(method)
    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not holds_tracked((args, kwargs)):
            return method(self, *args, **kwargs)
        nodes = nodes_in((args, kwargs))
        with DisableTorchFunctionSubclass():
            targets = list(_written(args[0] if args else next(iter(kwargs.values()))))
            for target in targets:
                prepare(target, name)
            work = method(self, *args, **kwargs)
            for target in targets:
                rewrite(target, enter(RaisingNode(name, error, tuple(nodes), target.shape, target.dtype)))
        return work

    return collective


def _written(nest: Any) -> Iterable[torch.Tensor]:
    """The tensors in a nest of lists that get a new history: all that can have one, but leaves that require grad, and their views."""
    if isinstance(nest, torch.Tensor):
        memory = nest if nest._base is None else nest._base
        if nest.dtype in DIFFERENTIABLE and not isinstance(any_node(memory), Leaf):
            yield nest
    elif isinstance(nest, list | tuple):
        for item in nest:
            yield from _written(item)
