"""What a node keeps for its rule: plain aliases with torch's version counter, and their way back into the graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from ops_registry.rule import FROM_RESULT, CallPlan
from ops_registry.torch_private import DisableTorchFunctionSubclass, saved_tensors_hooks
from tracer.errors import FreedGraphError, OverwrittenError
from tracer.naming import describe_node
from tracer.node import Node, tensors_in
from tracer.recording.saved_hooks import PACKED, Hooks, pack, unpack_nest
from tracer.tracked_tensor import Tensor, plain_alias

_PLAIN = torch.Tensor

#: Types of arguments that are neither a tensor nor could hold one.
NUMBERS = frozenset({float, int, bool, complex, type(None)})


Saved = list[tuple[torch.Tensor, int]]


def keep(
    plan: CallPlan, bound: tuple[Any, ...], result: Any, extra: dict[str, Any]
) -> tuple[tuple[Any, ...], Sequence[tuple[torch.Tensor, int]]]:
    """What the formulas of ``plan`` name, tensors as plain aliases, and each of these with its version.

    An alias shares storage and version counter with the tensor but not its history, so no cycle arises and nothing that the user
    does to the tensor's own attributes afterwards matters.
    """
    if plan.gather is None:
        return (), ()
    hooks = saved_tensors_hooks(False)
    if hooks is not None:
        return pack_kept(*keep_unpacked(plan, bound, result, extra), hooks)
    values = plan.gather(bound, result, extra)
    if not plan.tensor_positions:
        return values, ()
    if len(values) == 1:
        value = values[0]
        kind = type(value)
        if kind is _PLAIN or kind is Tensor:
            alias = plain_alias(value)
            return (alias,), ((alias, value._version),)
        if kind in NUMBERS:
            return values, ()
    return _hold_all(plan, values)


def keep_unpacked(
    plan: CallPlan, bound: tuple[Any, ...], result: Any, extra: dict[str, Any]
) -> tuple[tuple[Any, ...], Sequence[tuple[torch.Tensor, int]]]:
    """As ``keep``, whatever saved-tensor hooks are set."""
    return ((), ()) if plan.gather is None else _hold_all(plan, plan.gather(bound, result, extra))


def _hold_all(plan: CallPlan, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], Saved]:
    saved: Saved = []
    kept = list(values)
    for i in plan.tensor_positions:
        kept[i] = hold(values[i], saved)
    return tuple(kept), saved


def pack_kept(
    kept: tuple[Any, ...], saved: Sequence[tuple[torch.Tensor, int]], hooks: Hooks | None
) -> tuple[tuple[Any, ...], Sequence[tuple[torch.Tensor, int]]]:
    """What was kept, packed by the hooks where some are set."""
    return (kept, saved) if hooks is None or not saved else (pack(kept, hooks), PACKED)


def hold(value: Any, saved: Saved) -> Any:
    """``value`` with plain aliases in place of its tensors, which are added to ``saved``; lists are copied."""
    kind = type(value)
    if kind is Tensor or kind is _PLAIN or isinstance(value, _PLAIN):
        alias = plain_alias(value)
        saved.append((alias, value._version))
        return alias
    if kind is list:
        return [hold(v, saved) for v in value]
    if isinstance(value, tuple) and kind is not torch.Size:
        return tuple([hold(v, saved) for v in value])
    return value


def unpack(node: Node) -> tuple[Any, ...]:
    """What ``node`` kept, checked against torch's version counters; unpacked, where saved-tensor hooks had packed it.

    Raises ``FreedGraphError`` when an earlier backward has released it, ``OverwrittenError`` when one was written in place since.
    """
    kept = node.kept
    if kept is None:
        raise FreedGraphError(
            f"backward reached {describe_node(node)} a second time: what it had kept was released by the first pass. "
            f"Pass retain_graph=True to the first."
        )
    if node.saved is PACKED:
        return unpack_nest(kept)
    for position, (tensor, version) in enumerate(node.saved):
        if tensor._version != version:
            writer = last_write(tensor)
            raise OverwrittenError(
                f"{describe_node(node)} kept '{_name_of(node, position)}', a {tensor.dtype} tensor of shape {tuple(tensor.shape)}, at "
                f"version {version}; it was since overwritten in place{writer} and is at version {tensor._version}. Write out of place, "
                f"or into a clone."
            )
    return kept


#: The op that last wrote in place into a storage (by its address), the shape it wrote and the version it left; the latest 256.
_writes: OrderedDict[int, tuple[str, torch.Size, int]] = OrderedDict()


def note_write(target: torch.Tensor, name: str) -> None:
    """Remember that the op has just written into ``target``, for the error of whoever kept what was there."""
    if target.layout is not torch.strided:
        return
    address = target.untyped_storage().data_ptr()
    _writes[address] = (name, target.shape, target._version)
    _writes.move_to_end(address)
    if len(_writes) > 256:
        _writes.popitem(last=False)


def last_write(tensor: torch.Tensor) -> str:
    """`` by mul_ of shape (2,)``, where that is known."""
    if tensor.layout is not torch.strided:
        return ""
    name, shape, version = _writes.get(tensor.untyped_storage().data_ptr(), ("", torch.Size(), -1))
    return f" by {name}_ of shape {tuple(shape)}" if version == tensor._version else ""


def release(node: Node) -> None:
    """Let go of what ``node`` kept. A node that kept no tensor can be gone through again, as in torch."""
    if node.saved:
        node.kept, node.saved = None, ()


def _name_of(node: Node, position: int) -> str:
    """The rule's name for the tensor at ``position`` among all those kept."""
    assert node.kept is not None
    for name, value in zip(node.plan.saved_names, node.kept, strict=True):
        position -= len(tensors_in(value))
        if position < 0:
            return name
    return "?"


def reattach(node: Node, kept: tuple[Any, ...]) -> tuple[Any, ...]:
    """The kept values with their history again, for a backward pass that is recorded itself."""
    return tuple(
        [
            value if source is None else _attached(node, value, source)
            for value, source in zip(kept, node.plan.sources, strict=True)
        ]
    )


def _attached(node: Node, value: Any, source: int) -> Any:
    if source >= 0:
        return _with_nodes(value, node.parents[source])
    if node.outputs is None:
        return _with_nodes(value, node) if isinstance(value, _PLAIN) else value
    if source == FROM_RESULT:
        return type(value)(
            [_with_nodes(v, node.output(i, v.shape, v.dtype)) if _carries(v) else v for i, v in enumerate(value)]
        )
    return (
        _with_nodes(value, node.output(FROM_RESULT - 1 - source, value.shape, value.dtype))
        if _carries(value)
        else value
    )


def _carries(value: Any) -> bool:
    return isinstance(value, _PLAIN) and (value.dtype.is_floating_point or value.dtype.is_complex)


def _with_nodes(value: Any, nodes: Any) -> Any:
    """A tracked alias of ``value`` that was made by ``nodes``; a list of them for a list."""
    if type(nodes) is tuple:
        return type(value)([_with_nodes(v, n) for v, n in zip(value, nodes, strict=True)])
    if nodes is None or not _carries(value):
        return value
    with DisableTorchFunctionSubclass():
        alias: Any = plain_alias(value)
    alias.__class__ = Tensor
    alias._node = nodes
    return alias
