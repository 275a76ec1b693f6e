"""A module's forward pass and our backward pass through it as one graph, from its inputs and cotangents to its results and gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.torch_private import (
    DisableAutocast,
    DisableTorchFunctionSubclass,
    is_any_autocast_enabled,
    storage_key,
)
from tracer.backprop.accumulate import leaving_grad_alone
from tracer.backprop.api import grad
from tracer.compiled.capture import Captured, Returned, shows_as_it_is
from tracer.compiled.graphs import checked_capture
from tracer.compiled.nests import Rebuild, flatten
from tracer.compiled.reached import Reached
from tracer.compiled.shared_memory import name_at
from tracer.errors import CaptureError, InPlaceError
from tracer.node import CallNode, Leaf, Node, Output
from tracer.recording.views import WriteBan, write_ban
from tracer.tracked_tensor import Tensor, plain_alias

_aten = torch.ops.aten


@dataclass(frozen=True)
class Part(Returned):
    """One leaf of what the module returned; of the kind "view" too, of the tensor given there, and never "grad"."""

    #: Of a view: size, strides, and the offset from that of the tensor.
    place: tuple[Any, ...] = ()
    #: Why it may not be written into.
    ban: WriteBan | None = None


@dataclass
class Joint:
    """The graph: its results are those of the module, what it writes, gradients. Without gradients it is the forward pass alone."""

    captured: Captured
    #: The forward pass alone, as it was captured first.
    forward: Captured
    #: Tensors that the module gets from somewhere beyond what was walked: offered to the graph behind all others.
    strangers: list[torch.Tensor]
    #: For each input of the graph, the position of a tensor, or -1 less the number of a cotangent.
    inputs: list[int]
    #: What the module returned, leaf by leaf, and what makes its nest again.
    parts: list[Part]
    rebuild: Rebuild
    #: How many of the graph's results are the module's, and which of these have a history.
    results: int
    differentiable: list[int]
    #: Tensors that are written, one for each of the results behind those of the module.
    written: list[int]
    #: Tensors whose gradients are the graph's last results.
    wanted: list[int]
    #: Size, strides, dtype and device of each cotangent.
    cotangents: list[tuple[Any, ...]]


class _Forward:
    """Runs the module on what stands in for its tensors, and notes what it returned."""

    def __init__(self, call: Callable[[], Any], tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        self.call = call
        self.tensors = tensors
        self.names = names
        self.parts: list[Part] = []
        self.rebuild: Rebuild = lambda leaves: leaves[0]
        #: Those results that are neither inputs nor views of them, each once.
        self.own: list[torch.Tensor] = []

    def __call__(self) -> list[Any]:
        nodes = [_node_of(tensor) for tensor in self.tensors]
        try:
            value = self.call()
        except InPlaceError as error:
            raise CaptureError(
                f"a compiled module writes in place: {error} To its graph an argument that requires grad is a leaf, wherever it came "
                f"from: write into a clone of it."
            ) from error
        for tensor, node, name in zip(self.tensors, nodes, self.names, strict=True):
            if _node_of(tensor) is not node:
                raise CaptureError(
                    f"the module writes a value with a history into {name}, of shape {tuple(tensor.shape)}: what else uses that tensor "
                    f"would have to go back through this call. Write into a clone, or under torch.no_grad() a value without history."
                )
        with DisableTorchFunctionSubclass():
            leaves, self.rebuild = flatten(value)
            self._sort(leaves)
            # Values that are no tensors are looked at where results are collected.
            return [*map(plain_alias, self.own), *(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))]

    def _sort(self, leaves: Sequence[Any]) -> None:
        given = {id(tensor): position for position, tensor in enumerate(self.tensors)}
        memory = {storage_key(tensor): position for position, tensor in enumerate(self.tensors)}
        places: dict[int, int] = {}
        self.own, self.parts = [], []
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        for leaf in tensors.values():
            if leaf.layout is not torch.strided:
                raise CaptureError(
                    f"the module returns a tensor of layout {leaf.layout} and shape {tuple(leaf.shape)}: a compiled module returns dense "
                    f"ones. Return x.to_dense()."
                )
        keys = [storage_key(leaf) for leaf in tensors.values()]
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                self.parts.append(Part("value", leaf))
                continue
            tracked = type(leaf) is Tensor
            history = _node_of(leaf) is not None
            key = storage_key(leaf)
            if id(leaf) in given:
                self.parts.append(Part("input", given[id(leaf)]))
            elif key in memory:
                self.parts.append(self._view(leaf, memory[key], tracked, history))
            else:
                if id(leaf) not in places:
                    places[id(leaf)] = len(self.own)
                    self.own.append(leaf)
                ban = WriteBan.OF_A_COMPILED_MODULE if keys.count(key) > 1 else None
                self.parts.append(Part("result", places[id(leaf)], tracked, history, ban=ban))

    def _view(self, leaf: torch.Tensor, position: int, tracked: bool, history: bool) -> Part:
        """A view of an input is made again of the real one at each call, so that it is a view of that."""
        base = self.tensors[position]
        if not shows_as_it_is(base, leaf) or (history and not _only_our_views(_node_of(leaf), _node_of(base))):
            raise CaptureError(
                f"the module returns a view of {name_at(self.names, position)}, of shape {tuple(leaf.shape)}, that was made in a way that "
                f"cannot be repeated outside of the graph (a replaced rule, a hook, another dtype, a write). Return a clone of it."
            )
        place = leaf.shape, leaf.stride(), leaf.storage_offset() - base.storage_offset()
        return Part("view", position, tracked, history, place=place, ban=write_ban(leaf))


def _node_of(tensor: torch.Tensor) -> Node | None:
    return tensor._node if type(tensor) is Tensor else None


def _only_our_views(node: Node | None, end: Node | None) -> bool:
    """Whether a history leads to ``end`` through calls that have our own rules, and no hooks, alone."""
    while node is not end:
        if isinstance(node, Output) and node.extras is None:
            (node,) = node.parents
        if not isinstance(node, CallNode) or node.extras is not None or len(node.parents) != 1:
            return False
        if any(not (f.function.__module__ or "").startswith("ops_registry") for f in node.plan.formulas()):
            return False
        (node,) = node.parents
    return True


@contextmanager
def without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hooks of leaves run in the backward pass around, not in the graph."""
    leaves = [node for node in map(_node_of, tensors) if isinstance(node, Leaf)]
    extras = [leaf.extras for leaf in leaves]
    for leaf in leaves:
        leaf.extras = None
    try:
        yield
    finally:
        for leaf, before in zip(leaves, extras, strict=True):
            leaf.extras = before


def capture_module(call: Callable[[], Any], reached: Reached, tensors: list[torch.Tensor], names: list[str]) -> Joint:
    """The graph of ``call``, which runs the module, with the gradients of all ``tensors`` that require grad where a result has a history.

    Raises ``CaptureError`` for what no graph can hold; whatever is raised, nothing has changed.
    """
    run = _Forward(call, tensors, names)
    forward, strangers = checked_capture(run, reached, tensors, names, {})
    _refuse_own_backward(forward, names)
    if forward.writes is not None and forward.writes.made:
        raise forward.writes.refusal()
    differentiable = [part.at for part in _distinct(run.parts) if part.history]
    made = Joint(forward, forward, strangers, [], run.parts, run.rebuild, len(run.own), differentiable, [], [], [])
    if not differentiable:
        return _put_in_order(made, len(tensors))
    offered = [*tensors, *strangers]
    made.wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
    made.cotangents = _cotangents(forward, differentiable)
    cotangents = [empty_like_cotangent(kind) for kind in made.cotangents]
    all_names = [*names, *["a tensor from elsewhere"] * len(strangers), *["a cotangent"] * len(cotangents)]

    def joint() -> list[Any]:
        with without_hooks(tensors):
            run()
            roots, wanted = [run.own[i] for i in differentiable], [tensors[i] for i in made.wanted]
            with leaving_grad_alone() as filled, DisableAutocast() if is_any_autocast_enabled() else nullcontext():
                grads = grad(roots, wanted, cotangents, allow_unused=True)
        with DisableTorchFunctionSubclass():
            # A checkpoint with a backward pass of its own (use_reentrant=True) fills .grad of what it uses.
            parts = [
                [g for g in (filled.get(t), found) if g is not None] for t, found in zip(wanted, grads, strict=True)
            ]
            sums = [functools.reduce(torch.add, map(plain_alias, part)) if part else None for part in parts]
            return [*map(plain_alias, run.own), *sums]

    made.captured, more = checked_capture(joint, reached, [*offered, *cotangents], all_names, {})
    _refuse_own_backward(made.captured, names)
    made.strangers = [*strangers, *more]
    return _put_in_order(made, len(offered))


def _distinct(parts: Sequence[Part]) -> list[Part]:
    """The graph's own results among what was returned, each once, in order."""
    found = {part.at: part for part in parts if part.kind == "result"}
    return [found[at] for at in sorted(found)]


def _cotangents(captured: Captured, differentiable: Sequence[int]) -> list[tuple[Any, ...]]:
    """What the graph takes as cotangents of the differentiable results: dense tensors like these."""
    results: Any = captured.graph.graph.output_node().args[0]
    values = [results[captured.returned[position].at].meta["val"] for position in differentiable]
    return [(value.shape, _dense(value), value.dtype, value.device) for value in values]


def empty_like_cotangent(kind: tuple[Any, ...]) -> torch.Tensor:
    """A tensor of the size, strides, dtype and device of a cotangent."""
    size, strides, dtype, device = kind
    return torch.empty_strided(size, strides, dtype=dtype, device=device)


def _dense(value: torch.Tensor) -> tuple[int, ...]:
    """The strides of a value if it is dense, else those of a contiguous one."""
    if _aten.is_non_overlapping_and_dense.default(value):
        return value.stride()
    return torch.empty(value.shape, device="meta").stride()


def _refuse_own_backward(captured: Captured, names: Sequence[str]) -> None:
    if captured.around.prepare:
        raise CaptureError(
            "a module in DistributedDataParallel is called by a compiled module, whose graphs exchange neither gradients nor buffers. Wrap "
            "the compiled module (DistributedDataParallel(tracer.compile(module))), or compile the step that calls the wrapper."
        )
    changed = [
        *(position for position, _ in captured.grads), *captured.cleared, *(position for position, _ in captured.turned)
    ]  # fmt: skip
    if changed or captured.looks_at_grad:
        what = name_at(names, changed[0]) if changed else "a tensor"
        raise CaptureError(
            f"the module fills, clears or looks at .grad of {what}, or turns its requires_grad, in its forward pass: a compiled module "
            f"only computes. Compile the whole step (tracer.compile(step)), or do this outside of the module."
        )


def _put_in_order(joint: Joint, offered: int) -> Joint:
    """Make the graph's results those of the module, what it writes, gradients that there are; and say what its inputs are."""
    graph = joint.captured.graph.graph
    output = graph.output_node()
    values: Any = output.args[0]
    found = [values[leaf.at] if leaf.kind == "result" else None for leaf in joint.captured.returned]
    results, grads = found[: joint.results], found[joint.results :][: len(joint.wanted)]
    inputs = dict(zip(graph.find_nodes(op="placeholder"), joint.captured.used, strict=True))
    written = _take_writes_out(graph, list(inputs))
    joint.inputs = [_meaning(position, offered, len(joint.cotangents)) for position in inputs.values()]
    joint.written = [inputs[node] for node in written]
    joint.wanted = [i for i, node in zip(joint.wanted, grads, strict=True) if node is not None]
    output.args = ((*results, *written.values(), *(node for node in grads if node is not None)),)
    joint.captured.graph.recompile()
    return joint


def _meaning(position: int, offered: int, cotangents: int) -> int:
    if position < offered:
        return position
    return offered - position - 1 if position < offered + cotangents else position - cotangents


def _take_writes_out(graph: torch.fx.Graph, inputs: Sequence[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """Values in place of writes: what is written into each input in the end; what reads it after a write reads that value."""
    written: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        for target, value in written.items():
            node.replace_input_with(target, value)
        if node.target is _aten.copy_.default and node.args[0] in {*inputs, *written.values()}:
            at = next(i for i in inputs if node.args[0] is written.get(i, i))
            value = node.args[1]
            if value.meta["val"].dtype is not at.meta["val"].dtype:
                with graph.inserting_before(node):
                    value = graph.call_function(_aten._to_copy.default, (value,), {"dtype": at.meta["val"].dtype})
                    value.meta = dict(node.meta)
            node.replace_all_uses_with(value)
            graph.erase_node(node)
            written[at] = value
    return written
