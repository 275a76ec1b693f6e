"""``torch.vmap`` over tracked tensors: arguments, and what the function closes over.

Inside a level every call is recorded as usual, on tensors that each stand for a batch. When the level ends, what was recorded in it becomes
one node, a ``VmapNode``: its gradient is one sweep over the nodes inside, under a level of its own, for the whole batch at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    add_batch_dim,
    batch_level_of,
    is_batched,
    remove_batch_dim,
    tree_flatten,
    tree_unflatten,
    vmap_parts,
)
from tracer.backprop.sweep import Sweep
from tracer.errors import UnsupportedError
from tracer.graph import enter
from tracer.node import Bridge, CallNode, Leaf, Node, OpaqueNode, Output, flat
from tracer.recording.inplace import rewrite_argument
from tracer.recording.levels import Argument, Level, levels, opened, physical, shares_memory
from tracer.recording.parents import DIFFERENTIABLE
from tracer.recording.results import mark
from tracer.recording.views import WriteBan, ban_writes, base_of, views_of
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias, tracked_alias

torch_flat_vmap: Callable[..., Any] = vmap_parts._flat_vmap


class BatchedInput(Node):
    """An argument of a vmapped function, as it looks inside: the gradient goes on at ``outer``, with the batch along ``dim``."""

    __slots__ = ("dim", "level", "outer")

    def __init__(self, outer: Node, dim: int, level: Level, shape: torch.Size, dtype: torch.dtype) -> None:
        super().__init__((), shape, dtype)
        self.outer = outer
        self.dim = dim
        self.level = level

    @property
    def op(self) -> str:
        return "batched_input"


class VmapNode(OpaqueNode):
    """What was recorded inside one level of ``torch.vmap``, as one call.

    ``roots`` are the nodes inside whose gradients come from outside, the batch of each along its ``out_dims``. ``limits`` are the nodes
    where a sweep inside ends; parent by parent they say where the gradient goes on. ``native`` gives those results, by position, that
    have a history in torch's own autograd too: an argument of the function that torch follows met a tracked tensor.
    """

    __slots__ = ("inside", "level", "limits", "native", "out_dims", "roots")

    inside: list[Node]
    #: None for a result is no gradient: the sweep inside begins with those that are there.
    none_is_zero = True

    def __init__(
        self, level: Level, roots: list[Node], out_dims: list[int], native: dict[int, torch.Tensor] | None = None
    ) -> None:
        self.level = level
        self.roots = roots
        self.out_dims = out_dims
        self.inside, self.limits = _inside(level, roots)
        self.native = list(native or ())
        bridges = [Bridge(tensor) for tensor in (native or {}).values()]
        super().__init__("vmap", (*_go_on(self.limits, level), *bridges), None, None)

    @property
    def origin(self) -> str:
        return "the backward pass inside torch.vmap"

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        if recorded and self.native:
            raise UnsupportedError(
                "create_graph=True, or a transform of a transform, reached a function under torch.vmap in which torch's own autograd "
                "follows a tensor beside tracked ones: that part of its backward pass cannot be recorded. Track it before (tracer.track, "
                "nn.track)."
            )
        grads = grad if isinstance(grad, tuple) else (grad,)
        given = [i for i, g in enumerate(grads) if g is not None]
        reached: list[int] = []

        def sweep_inside(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
            level = levels.open[-1]
            level.stands_for = {self.level, *self.level.stands_for}
            roots = [(self.roots[i], c) for i, c in zip(given, cotangents, strict=True)]
            with Sweep(keep_graph=True, create_graph=recorded) as sweep:
                found = sweep.run_inside(roots, self.inside, self.limits)
            reached[:] = [i for i, limit in enumerate(self.limits) if limit in found]
            return tuple([found[self.limits[i]] for i in reached])

        with torch.enable_grad() if recorded else torch.no_grad():
            results = at_once(sweep_inside, [grads[i] for i in given], [self.out_dims[i] for i in given], "different")
            all_results: list[Any] = [None] * len(self.limits)
            for i, result in zip(reached, results, strict=True):
                all_results[i] = _outside(self.limits[i], self.level, result)
        return [*all_results, *(grads[i] for i in self.native)]


def _outside(limit: Node, level: Level, grad: torch.Tensor) -> torch.Tensor:
    """A gradient that a sweep inside has found, with the batch along dimension 0, as the gradient of what lies outside."""
    if not _shares_batch(limit, level):
        return grad.sum(0)  # what the function closes over is the same for each of the batch
    return grad.movedim(0, limit.dim) if isinstance(limit, BatchedInput) else grad


def _shares_batch(limit: Node, level: Level) -> bool:
    """Whether a node where ``level`` ends stands for a batch: an argument, or a node of a level whose backward pass this one is."""
    if isinstance(limit, BatchedInput):
        return limit.level is level or limit.level in level.stands_for
    return _ended(limit) in level.stands_for


def _home(node: Node) -> Node:
    """The call that ``node`` is a result of."""
    return node.parents[0] if isinstance(node, Output) and node.parents else node


def _ended(node: Node) -> Level | None:
    """The level in which ``node`` was recorded, where that has ended."""
    extras = _home(node).extras
    return None if extras is None else extras.level


def _inside(level: Level, roots: list[Node]) -> tuple[list[Node], list[Node]]:
    """The nodes recorded in ``level`` that ``roots`` reach, newest first, and those where it ends: arguments, and what lies outside."""
    inside: list[Node] = []
    limits: list[Node] = []
    stack = list(dict.fromkeys(roots))
    seen = set(stack)
    while stack:
        node = stack.pop()
        if _is_inside(node, level):
            inside.append(node)
            for parent in flat(node.parents):
                if parent not in seen:
                    seen.add(parent)
                    stack.append(parent)
        else:
            limits.append(node)
    inside.sort(key=attrgetter("serial"), reverse=True)
    return inside, limits


def _is_inside(node: Node, level: Level) -> bool:
    if type(node) is CallNode and node.extras is None:  # most are
        return node.serial >= level.start
    if isinstance(node, Leaf | Bridge | BatchedInput):
        return False
    ended = _ended(node)
    return _home(node).serial >= level.start if ended is None else ended is level


def _go_on(limits: list[Node], level: Level) -> list[Node]:
    """Where the gradients of the limits go on: outside, or, for nodes of a level that has ended, at one more node of that level."""
    parents: list[Any] = list(limits)
    ended: dict[Level, list[int]] = {}
    for position, limit in enumerate(limits):
        if not _shares_batch(limit, level):
            continue
        if isinstance(limit, BatchedInput):
            parents[position] = limit.outer
        elif (theirs := _ended(limit)) is not None:
            ended.setdefault(theirs, []).append(position)
    for theirs, positions in ended.items():
        again = VmapNode(theirs, [limits[i] for i in positions], [0] * len(positions))
        again.outputs = [None] * len(positions)
        enter(again)
        for index, position in enumerate(positions):
            limit = limits[position]
            assert limit.shape is not None and limit.dtype is not None
            output = Output(again, index, torch.Size((level.batch_size, *limit.shape)), limit.dtype)
            again.outputs[index] = weakref.ref(output)
            parents[position] = output
    return parents


def flat_vmap(
    func: Callable[..., Any],
    batch_size: int,
    flat_in_dims: list[int | None],
    flat_args: list[Any],
    args_spec: Any,
    out_dims: Any,
    randomness: str,
    **kwargs: Any,
) -> Any:
    """What every form of ``torch.vmap`` comes to: ``func`` once, on arguments that stand for a batch."""
    if torch.compiler.is_compiling():
        return torch_flat_vmap(func, batch_size, flat_in_dims, flat_args, args_spec, out_dims, randomness, **kwargs)
    with vmap_parts.vmap_increment_nesting(batch_size, randomness) as number, opened(number, batch_size) as level:
        inputs = [
            arg if dim is None else batched(arg, dim, level) for arg, dim in zip(flat_args, flat_in_dims, strict=True)
        ]
        outputs = func(*tree_unflatten(inputs, args_spec), **kwargs)
        return _leave(outputs, out_dims, level, func)


def batched(arg: torch.Tensor, dim: int, level: Level) -> torch.Tensor:
    """An argument as the vmapped function sees it."""
    if type(arg) is not Tensor:
        inside = add_batch_dim(arg, dim, level.number)
    else:
        with DisableTorchFunctionSubclass():
            inside = become_tracked(add_batch_dim(plain_alias(arg), dim, level.number))
            if arg._node is not None:
                inside._node = BatchedInput(arg._node, dim, level, inside.shape, inside.dtype)
    level.arguments.append(Argument(arg, inside, dim))
    return inside


def at_once(
    func: Callable[..., Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], dims: Sequence[int], randomness: str
) -> list[torch.Tensor]:
    """``func`` once for the whole batch, which lies along ``dims`` of the ``tensors``; along dimension 0 of what it returns."""
    vmap_parts.lazy_load_decompositions()  # torch's batching rules that are written in Python
    size = tensors[0].shape[dims[0]]
    with vmap_parts.vmap_increment_nesting(size, randomness) as number, opened(number, size) as level:
        listed = func(*[batched(t, dim, level) for t, dim in zip(tensors, dims, strict=True)])
        with DisableTorchFunctionSubclass():
            return _left(listed, [0] * len(listed), level, func)


def _leave(outputs: Any, out_dims: Any, level: Level, func: Callable[..., Any]) -> Any:
    """The results of ``func`` outside of the level, with a history where they have one inside; so too the arguments that it has written."""
    listed, spec = tree_flatten(outputs)
    with DisableTorchFunctionSubclass():
        dims = _dims_of(out_dims, outputs, spec)
        if dims is None:
            vmap_parts._unwrap_batched(outputs, out_dims, level.number, level.batch_size, func)  # raises
        left = _left(listed, dims, level, func)
    return tree_unflatten(left, spec)


def _left(listed: Sequence[Any], dims: Any, level: Level, func: Callable[..., Any]) -> list[Any]:
    """``_leave`` for a list of results with the place of the batch in each."""
    number, size = level.number, level.batch_size
    left: list[Any] = [
        remove_batch_dim(_expanded(level, o, dim), number, size, dim)
        if dim is not None and isinstance(o, torch.Tensor)
        else vmap_parts._maybe_remove_batch_dim(vmap_parts._get_name(func), o, number, size, dim)
        for o, dim in zip(listed, dims, strict=True)
    ]
    fresh = [
        i for i, o in enumerate(listed) if type(o) is Tensor and left[i] is not o and left[i].dtype in DIFFERENTIABLE
    ]
    written = [a for a in level.arguments if a.written]
    owners, hidden = _owners(level, [listed[i] for i in fresh], [left[i] for i in fresh])
    ways_out = [WayOut(left[i], listed[i], dims[i]) for i in fresh]
    ways_out += [WayOut(tensor, inside, 0) for tensor, inside in hidden]
    ways_out += [WayOut(a.outer, a.inside, a.dim) for a in written]
    nodes = _histories(level, ways_out)
    for argument, node in zip(written, nodes[len(fresh) + len(hidden) :], strict=True):
        assert node is not None
        rewrite_argument(argument, node)
    for (tensor, _), node in zip(hidden, nodes[len(fresh) :], strict=False):
        become_tracked(tensor, node)
    for i, owner, node in zip(fresh, owners, nodes, strict=False):
        left[i] = _outside_of(left[i], owner, node)
    return left


class WayOut(NamedTuple):
    """A tensor outside of a level, what it is inside, and the dimension along which the batch goes."""

    outside: torch.Tensor
    inside: torch.Tensor
    dim: int


def _owners(
    level: Level, inside: list[torch.Tensor], outside: list[torch.Tensor]
) -> tuple[list[torch.Tensor | None], list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each result the tensor whose memory it is a view of, as in torch; None for one that has its memory for itself.

    That is an argument, what the function closes over, or, for results that share memory with one another, a tensor that nobody else
    holds: those come second, each with what it is inside.
    """
    owners: list[torch.Tensor | None] = []
    hidden: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i, (inner, result) in enumerate(zip(inside, outside, strict=True)):
        base: Any = base_of(inner)
        base = inner if base is None else base
        if not (is_batched(inner) and batch_level_of(inner) == level.number):
            owners.append(base)
            continue
        known = [*(a.outer for a in level.arguments), *(tensor for tensor, _ in hidden)]
        owner = next((t for t in known if shares_memory(t, result)), None)
        if owner is None and any(shares_memory(other, result) for other in outside[i + 1 :]):
            owner = vmap_parts._remove_batch_dim(base, level.number, level.batch_size, 0)
            hidden.append((owner, base))
        owners.append(owner)
    return owners, hidden


def _outside_of(result: torch.Tensor, owner: torch.Tensor | None, node: Node | None) -> torch.Tensor:
    """A result with its history, as a view of ``owner``, whose memory it shows."""
    if physical(result).requires_grad and (node is None or is_batched(result)):
        # torch's own autograd follows it too, to where the outermost level ends.
        return result if node is None else become_tracked(result, node)
    if owner is None:
        return tracked_alias(result, node)
    if (result.dtype, result.is_conj(), result.is_neg()) != (owner.dtype, owner.is_conj(), owner.is_neg()):
        alias = tracked_alias(result, node)
        ban_writes(alias, WriteBan.OF_A_BATCH)
        base: Any = base_of(owner)
        views_of(owner if base is None else base).append(weakref.ref(alias))
        return alias
    view = owner.as_strided(result.size(), result.stride(), result.storage_offset())
    return mark(view, node, owner)


def _expanded(level: Level, result: Any, dim: Any) -> Any:
    """A result as a batch where its batch goes elsewhere than to dimension 0: torch puts one that is no batch nowhere else."""
    if (
        not dim
        or not isinstance(result, torch.Tensor)
        or (is_batched(result) and batch_level_of(result) == level.number)
    ):
        return result
    return add_batch_dim(plain_alias(result).expand(level.batch_size, *result.shape), 0, level.number)


def _dims_of(out_dims: Any, outputs: Any, spec: Any) -> Sequence[Any] | None:
    """``out_dims`` for each of the results; None where torch does not accept them."""
    if isinstance(out_dims, int):
        return [out_dims] * spec.num_leaves
    if isinstance(outputs, torch.Tensor):
        return [None] if out_dims is None else out_dims if isinstance(out_dims, tuple) and len(out_dims) == 1 else None
    return vmap_parts._broadcast_to_and_flatten(out_dims, spec)


def _histories(level: Level, ways_out: list[WayOut]) -> list[Node | None]:
    """The histories of what leaves the level: one node for all, with a result for each that has a history inside."""
    carrying = [i for i, way in enumerate(ways_out) if getattr(way.inside, "_node", None) is not None]
    histories: list[Node | None] = [None] * len(ways_out)
    if not carrying:
        return histories
    ways = [ways_out[i] for i in carrying]
    results = [way.outside for way in ways]
    dims = [way.dim if way.dim >= 0 else way.dim + way.outside.dim() for way in ways]
    native = {i: r for i, r in enumerate(results) if type(r) is not Tensor and r.requires_grad}
    node = VmapNode(level, [way.inside._node for way in ways], dims, native)  # type: ignore[attr-defined]
    for inner in node.inside:
        inner.extra().level = level
    node.set_results(results, range(len(results)))
    enter(node, results)
    for index, i in enumerate(carrying):
        histories[i] = node.of_result(index, results[index])
    return histories
