"""Saved tensors: what a call saves for its rule, plain aliases with torch's version counter, and their way back into the graph."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ops_registry.rule import FROM_RESULT, CallPlan
from ops_registry.shared.descriptors import layout_of, shape_of
from ops_registry.sites import Site, find_site
from ops_registry.torch_private import DisableTorchFunctionSubclass, saved_tensors_hooks, storage_key
from tracer.errors import FreedGraphError, InferenceTensorError, OverwrittenError
from tracer.naming import describe_node, say_where
from tracer.node import CallNode, Node, Versions, tensors_in
from tracer.notes.cuts import noting
from tracer.recording.levels import levels, physical, physical_versions, translated
from tracer.recording.parents import DIFFERENTIABLE
from tracer.recording.saved_hooks import Hooks, pack, unpack_nest
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias, tracked_alias

_PLAIN = torch.Tensor

#: Types of arguments that are neither a tensor nor could hold one.
NUMBERS = frozenset({float, int, bool, complex, type(None)})
#: Those in an index that is saved as it reads at the call: its slices hold numbers alone.
_FIXED = NUMBERS | {slice, type(Ellipsis)}


#: What one call saves: the values in the order of ``CallPlan.saved_names``; the tensors among them, each with its version; and whether
#: saved-tensor hooks have packed the tensors (as in torch, there are no versions to check then).
Saved = tuple[tuple[Any, ...], Versions, bool]

NOTHING: Saved = ((), (), False)


def save(plan: CallPlan, bound: tuple[Any, ...], result: Any, by_products: dict[str, Any]) -> Saved:
    """What the formulas of ``plan`` name, tensors as plain aliases, through the saved-tensor hooks where some are set.

    An alias shares storage and version counter with the tensor but not its history, so no cycle arises and nothing that the user
    does to the tensor's own attributes afterwards matters.
    """
    if plan.gather is None:
        return NOTHING
    values = plan.gather(bound, result, by_products)
    if not plan.tensor_positions:
        return values, (), False
    hooks = saved_tensors_hooks(False)
    if hooks is None and len(plan.tensor_positions) == 1:
        # The most frequent case, without a loop.
        (position,) = plan.tensor_positions
        value = values[position]
        kind = type(value)
        if kind is _PLAIN or kind is Tensor:
            alias = plain_alias(value)
            if len(values) > 1:
                values = (*values[:position], alias, *values[position + 1 :])
            else:
                values = (alias,)
            try:
                return values, ((alias, value._version),), False
            except RuntimeError:
                raise inference_error(plan.rule.name, value) from None
        if kind in NUMBERS or (kind is tuple and _FIXED.issuperset(map(type, value))):
            return values, (), False
    saved = _aliased(plan, values)
    return saved if hooks is None else pack_saved(saved, hooks)


def save_unpacked(plan: CallPlan, bound: tuple[Any, ...], result: Any) -> Saved:
    """As ``save``, whatever saved-tensor hooks are set: for a call that is about to write, and packs later."""
    if plan.gather is None:
        return NOTHING
    values, versions, packed = _aliased(plan, plan.gather(bound, result, {}))
    return values, physical_versions(versions) if levels.open else versions, packed


def pack_saved(saved: Saved, hooks: Hooks | None) -> Saved:
    """What was saved, packed by the hooks where some are set."""
    values, versions, _ = saved
    return saved if hooks is None or not versions else (pack(values, hooks), (), True)


def pack_arguments(plan: CallPlan, saved: Saved, hooks: Hooks) -> Saved:
    """What was saved, the arguments packed by the hooks and the result not yet."""
    values, versions, _ = saved
    pairs = zip(values, plan.sources, strict=True)
    packed = [v if source is not None and source <= FROM_RESULT else pack(v, hooks) for v, source in pairs]
    return tuple(packed), versions, False


def _aliased(plan: CallPlan, values: tuple[Any, ...]) -> Saved:
    versions: list[tuple[torch.Tensor, int]] = []
    aliased = list(values)
    for i in plan.tensor_positions:
        value = values[i]
        kind = type(value)
        if kind is Tensor or kind is _PLAIN:
            aliased[i] = alias = plain_alias(value)
            try:
                versions.append((alias, value._version))
            except RuntimeError:
                raise inference_error(plan.rule.name, value) from None
        elif kind not in NUMBERS and not (kind is tuple and NUMBERS.issuperset(map(type, value))):
            aliased[i] = _alias(value, versions, plan.rule.name)
    return tuple(aliased), versions, False


def _alias(value: Any, versions: list[tuple[torch.Tensor, int]], op: str) -> Any:
    """``value``, saved by ``op``, with plain aliases in place of its tensors, which are added to ``versions``; lists are copied."""
    kind = type(value)
    if kind is Tensor or kind is _PLAIN or isinstance(value, _PLAIN):
        alias = plain_alias(value)
        try:
            versions.append((alias, value._version))
        except RuntimeError:
            raise inference_error(op, value) from None
        return alias
    if (kind is list or kind is tuple) and NUMBERS.issuperset(map(type, value)):
        return kind(value)
    if kind is list:
        return [_alias(v, versions, op) for v in value]
    if isinstance(value, tuple) and kind is not torch.Size:
        return tuple([_alias(v, versions, op) for v in value])
    return value


def version_of(tensor: torch.Tensor) -> int:
    """torch's version counter; 0 for an inference tensor, of which it counts no writes."""
    try:
        return tensor._version
    except RuntimeError:
        return 0


def inference_error(owner: str, tensor: torch.Tensor) -> InferenceTensorError:
    """The error for an inference tensor that ``owner`` was to save: torch counts no writes to one."""
    return InferenceTensorError(
        f"{owner} needs a tensor of shape {tuple(tensor.shape)} for its backward that was made in inference mode: an inference tensor "
        f"cannot be saved. Give it a clone made outside (x.clone()), or make the tensor under torch.no_grad() instead of "
        f"torch.inference_mode()."
    )


def saved_values(node: Node) -> tuple[Any, ...]:
    """What ``node`` saved, checked against torch's version counters; unpacked, where saved-tensor hooks had packed it.

    Raises ``FreedGraphError`` when an earlier backward has released it, ``OverwrittenError`` when one was written in place since.
    """
    saved = node.saved
    if saved is None:
        raise FreedGraphError(
            f"backward reached {describe_node(node)} a second time: what it had saved was released by the first pass. "
            f"Pass retain_graph=True to the first."
        )
    if levels.open:
        saved = _or_say_where(node, translated, node, saved)
    for position, (tensor, version) in enumerate(node.saved_versions):
        if tensor._version != version:
            writer, site = last_write(tensor)
            raise OverwrittenError(
                f"{describe_node(node)} saved '{_name_of(node, position)}', a {tensor.dtype} tensor of shape {tuple(tensor.shape)}, at "
                f"version {version}; it was since overwritten in place{writer} and is at version {tensor._version}. Write out of place, "
                f"or into a clone.",
                site,
            )
    return _or_say_where(node, unpack_nest, saved) if node.packed else saved


def _or_say_where(node: Node, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        say_where(error, node)
        raise


#: The op that last wrote in place into a storage, the shape it wrote, the version it left, and where that was; the latest 256, in their
#: order. Steps of optimisers stand among them, for memory is used again: what was written there before a step was another tensor.
_writes: OrderedDict[Any, tuple[str, torch.Size, int, Site | None]] = OrderedDict()
_NO_WRITE = ("", torch.Size(), -1, None)


def note_write(target: torch.Tensor, name: str) -> None:
    """Remember that the op has just written into ``target``, so that ``OverwrittenError`` can name the op that wrote."""
    if layout_of(target) is not torch.strided:
        return
    if levels.open:
        target = physical(target)
    storage = storage_key(target)
    site = None if noting.cuts is None else find_site(_in_place(name), 2)
    _writes[storage] = (name, shape_of(target), version_of(target), site)
    _writes.move_to_end(storage)
    if len(_writes) > 256:
        _writes.popitem(last=False)


#: Optimisers whose steps have written into their parameters, and noted nothing of each write.
_stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Remember that a step of the optimiser has written into its parameters, as ``note_write`` does of one write."""
    _stepped.add(optimizer)
    step = ("step", id(optimizer))
    _writes[step] = _NO_WRITE
    _writes.move_to_end(step)
    if len(_writes) > 256:
        _writes.popitem(last=False)


def last_write(tensor: torch.Tensor) -> tuple[str, Site | None]:
    """`` by mul_ of shape (2,)`` with its place, where that is known, or `` by a step of SGD``."""
    if tensor.layout is not torch.strided:
        return "", None
    storage = storage_key(tensor)
    name, shape, version, site = _writes.get(storage, _NO_WRITE)
    since = list(_writes)[list(_writes).index(storage) :] if version == tensor._version else None
    for optimizer in _stepped:
        if since is None or ("step", id(optimizer)) in since:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if any(p.layout is torch.strided and storage_key(p) == storage for p in parameters):
                return f" by a step of {type(optimizer).__name__}", None
    if since is None:
        return "", None
    where = f" at {site.line}" if site is not None and site.line is not None else ""
    return f" by {_in_place(name)} of shape {tuple(shape)}{where}", site


def _in_place(name: str) -> str:
    return name if name.startswith("__") else f"{name.rstrip('_')}_"


def release(node: Node) -> None:
    """Let go of what ``node`` saved. A node that saved no tensor can be gone through again, as in torch."""
    if node.saved_versions or node.packed:
        node.saved, node.saved_versions = None, ()


def _name_of(node: Node, position: int) -> str:
    """The rule's name for the tensor at ``position`` among all those saved."""
    assert node.saved is not None
    for name, value in zip(node.saved_names, node.saved, strict=True):
        position -= len(tensors_in(value))
        if position < 0:
            return name
    return "?"


def reattach(node: CallNode, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The saved values with their history again, for a backward pass that is recorded itself."""
    parents, one_result = node.parents, node.outputs is None
    with_history = list(values)
    with DisableTorchFunctionSubclass():
        for i, source in enumerate(node.plan.sources):
            if source is None:
                continue
            value = values[i]
            maker = parents[source] if source >= 0 else node
            if type(value) is _PLAIN and type(maker) is not tuple and (one_result or source >= 0):
                if value.dtype in DIFFERENTIABLE:
                    with_history[i] = become_tracked(plain_alias(value), maker)
            else:
                with_history[i] = attached(node, value, source)
    return tuple(with_history)


def attached(node: CallNode, value: Any, source: int) -> Any:
    """A saved value with its history; ``source`` is where it stems from, as the plan says."""
    if source >= 0:
        return _with_nodes(value, node.parents[source])
    if node.outputs is None:
        return _with_nodes(value, node) if isinstance(value, _PLAIN) else value
    if source == FROM_RESULT:
        return type(value)([_with_nodes(v, node.of_result(i, v)) if _carries(v) else v for i, v in enumerate(value)])
    return _with_nodes(value, node.of_result(FROM_RESULT - 1 - source, value)) if _carries(value) else value


def _carries(value: Any) -> bool:
    return isinstance(value, _PLAIN) and (value.dtype.is_floating_point or value.dtype.is_complex)


def _with_nodes(value: Any, nodes: Any) -> Any:
    """A tracked alias of ``value`` that was made by ``nodes``; a list of them for a list."""
    if type(nodes) is tuple:
        return type(value)([_with_nodes(v, n) for v, n in zip(value, nodes, strict=True)])
    return tracked_alias(value, nodes) if nodes is not None and _carries(value) else value
