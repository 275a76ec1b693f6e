"""What is left of a call's arguments and result: what a graph with ``values`` kept, what the rule saved, the leaves that are alive."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.sites import named_modules
from ops_registry.torch_private import DisableTorchFunctionSubclass, is_batched, storage_key, unwrapped
from tracer.errors import OverwrittenError
from tracer.node import CallNode, Leaf, Node, tensors_in
from tracer.reports.badness import state_of
from tracer.reports.report import kind
from tracer.reports.steps import input_names


def known_values(node: Node | None) -> dict[str, Any]:
    """The arguments of a call and its ``"result"``, by name, as far as they are to be had as they were. Nothing is unpacked for it."""
    if node is None:
        return {}
    if node.values is not None:
        return {name: _outside(value) for name in node.values for value in _kept(node, name)}
    if not isinstance(node, CallNode) or node.saved is None or node.packed:
        return _leaves(node)
    written = {id(tensor) for tensor, version in node.saved_versions if tensor._version != version}
    wanted = (*node.plan.rule.signature.names, "result")
    saved = {
        name: _outside(value)
        for name, value in zip(node.saved_names, node.saved, strict=True)
        if name in wanted and not any(id(tensor) in written for tensor in tensors_in(value))
    }
    return {**_leaves(node), **saved}


def _kept(node: Node, name: str) -> list[Any]:
    try:
        return [node.values[name]]
    except OverwrittenError:
        return []


def _outside(value: Any) -> Any:
    """A value of a level of torch.vmap that has ended, as the batch that it stands for."""
    if isinstance(value, torch.Tensor):
        while is_batched(value):
            value = unwrapped(value)
    elif type(value) in (tuple, list):
        return [_outside(item) for item in value]
    return value


def _leaves(node: Node) -> dict[str, Any]:
    """The leaves among the arguments, as they are now."""
    pairs = zip(input_names(node), node.parents, strict=False)
    return {name: p.variable for name, p in pairs if isinstance(p, Leaf) and p.variable is not None}


def bad_buffers(state: int) -> list[str]:
    """``buffer norm.running_mean``: the buffers of modules with names that hold nan, or an infinity."""
    return [
        f"buffer {paths[0]}.{name}".replace(" .", " ")
        for paths, module in named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and state_of(buffer) == state
    ]


def title_of_memory(tensor: torch.Tensor) -> str:
    """``parameter fc.weight``, or ``buffer pos``: what lies in the memory of ``tensor`` and stands in a module with a name; else empty."""
    with DisableTorchFunctionSubclass():
        if tensor.layout is not torch.strided:
            return ""
        for paths, module in named_modules():
            for kind_of, held in (("parameter", module._parameters), ("buffer", module._buffers)):
                for name, one in held.items():
                    if one is not None and one.shape == tensor.shape and storage_key(one) == storage_key(tensor):
                        return f"{kind_of} {paths[0]}.{name}".replace(" .", " ")
    return ""


def title_of(leaf: torch.Tensor) -> str:
    """``parameter layer.weight``; of a tensor that stands in no model with names, its kind."""
    for paths, module in named_modules():
        for name, parameter in module._parameters.items():
            if parameter is leaf:
                return f"parameter {paths[0]}.{name}" if paths[0] else f"parameter {name}"
    what = "parameter" if isinstance(leaf, torch.nn.Parameter) else "leaf"
    return f"the {what} {kind(leaf)}"
