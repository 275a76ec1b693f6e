"""One graph of a compiled module: how it is made, how it runs, and the node that it leaves in the user's graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.scopes import note_applied, rules_applied
from ops_registry.torch_private import (
    DisableAutocast,
    DisableTorchFunctionSubclass,
    is_any_autocast_enabled,
    is_batched,
    saved_tensors_hooks,
    set_grad_enabled,
)
from tracer.backprop.progress import innermost
from tracer.compiled.backends import Backend, default_backend, named_failure
from tracer.compiled.capture import Captured
from tracer.compiled.joint import Joint, Part, capture_module, empty_like_cotangent
from tracer.compiled.partition import Halves, forward_alone, halves
from tracer.compiled.random_numbers import draws
from tracer.compiled.reached import Reached
from tracer.compiled.shared_memory import refuse_shared_memory
from tracer.errors import BatchedGradientError, SecondDerivativeError
from tracer.graph import enter
from tracer.node import Node, OpaqueNode, RaisingNode
from tracer.recording.parents import any_node
from tracer.recording.saved import inference_error, pack_saved, release, saved_values
from tracer.recording.views import ban_writes
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias, tracked_alias


@contextmanager
def _as_in_the_graph() -> Iterator[None]:
    """Interception and grad mode off, and autocast, whose casts are in the graph."""
    mode = torch.is_grad_enabled()
    with DisableTorchFunctionSubclass():
        set_grad_enabled(False)
        try:
            if is_any_autocast_enabled():
                with DisableAutocast():
                    yield
            else:
                yield
        finally:
            set_grad_enabled(mode)


@dataclass
class ModuleGraph:
    """The graphs for one kind of call of a module, and how often it was made."""

    title: str
    joint: Joint
    halves: Halves
    names: list[str]
    #: For each ``use`` block around the call, the ops whose rule was taken in the capture.
    applied: tuple[set[str], ...]
    capture_seconds: float
    build_seconds: float
    #: Whether it draws random numbers.
    draws: bool
    calls: int = 0
    #: What it was made for, by name.
    key: list[tuple[str, Any]] = field(default_factory=list)
    #: What was not as in the graph before, in words.
    differed: list[str] = field(default_factory=list)
    #: As a graph of a step has them: there are no symbolic sizes here.
    conditions: None = None
    fixed_since: str = ""

    @property
    def captured(self) -> Captured:
        """The whole graph, before it was split."""
        return self.joint.captured

    def __call__(self, tensors: list[torch.Tensor], originals: Sequence[torch.Tensor]) -> Any:
        """Run the forward graph on ``tensors``, and return what the module returns, with a node behind what has a history.

        ``originals``: the tensors of the user's that they stand for, which gradients go to.
        """
        joint = self.joint
        self.calls += 1
        if self.applied:
            note_applied(self.applied)
        hooks = saved_tensors_hooks(False)
        with _as_in_the_graph():
            offered = [*tensors, *joint.strangers]
            if joint.written:
                refuse_shared_memory(joint.forward, offered, self.names)
            values = list(self.halves.forward([plain_alias(offered[i]) for i in self.halves.inputs]))
            results, saved = _objects(values[: joint.results]), values[joint.results :]
            del values
            if self.halves.backward is not None:
                self._record(results, saved, offered[: len(tensors)], originals, hooks)
            if self.captured.writes is not None:
                self.captured.writes.do()
            for part in joint.parts:
                if part.kind == "result" and part.tracked and type(results[part.at]) is not Tensor:
                    become_tracked(results[part.at])
        leaves = [_leaf(part, results, originals) for part in joint.parts]
        for part, leaf in zip(joint.parts, leaves, strict=True):
            if part.ban is not None:
                ban_writes(leaf, part.ban)
        return joint.rebuild(leaves)

    def replayed(self) -> ModuleGraph:
        """The same graphs, run call by call."""
        return ModuleGraph(
            self.title, self.joint, halves_of(self.joint, "replay"), self.names, self.applied, 0.0, 0.0, self.draws
        )

    def gradients(
        self, saved: list[torch.Tensor], grads: Sequence[torch.Tensor | None], arrived: set[int]
    ) -> list[torch.Tensor | None]:
        """Run the backward graph on what was saved, a list that is emptied, and on cotangents; None stands for zero.

        ``arrived``: the numbers of those that have come. None in the answer: nothing has come that this gradient depends on.
        """
        halves = self.halves
        assert halves.backward is not None
        kinds = self.joint.cotangents
        saved += [_fitting(grads[number], kinds[number]) for number in halves.cotangents]
        found = halves.backward(saved)
        return [
            None if depends and arrived.isdisjoint(depends) else value
            for value, depends in zip(found, halves.depends, strict=True)
        ]

    def name_of_saved(self, name: str) -> str:
        """What an input of the backward graph is called in errors."""
        kind, _, number = name.partition("_")
        if kind != "primals" or not number.isdigit():
            return f"an intermediate value ({name})"
        return self.names[int(number)] if int(number) < len(self.names) else "a tensor from elsewhere"

    def _record(
        self,
        results: list[torch.Tensor],
        saved: list[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        originals: Sequence[torch.Tensor],
        hooks: Any,
    ) -> None:
        joint = self.joint
        node = ModuleNode(self, tuple([any_node(originals[i]) for i in joint.wanted]), results)
        # An alias: a result that is saved must not hold the node that holds it.
        aliases = tuple([plain_alias(tensor) for tensor in saved])
        for alias in aliases:
            if alias.is_inference():
                raise inference_error(self.title, alias)
        versions = [(alias, alias._version) for alias in aliases]
        node.saved, node.saved_versions, packed = pack_saved((aliases, versions, False), hooks)
        if packed:
            node.extra().packed = True
        enter(node, results)
        for position in joint.differentiable:
            become_tracked(results[position], node.of_result(position, results[position]))


def _objects(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each result an object of its own: of ``h, h.detach()``, which are one to a graph, the first alone has a history."""
    if len(results) == len(set(map(id, results))):
        return results
    seen, objects = set[int](), list[torch.Tensor]()
    for tensor in results:
        objects.append(plain_alias(tensor) if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return objects


def _leaf(part: Part, results: Sequence[torch.Tensor], originals: Sequence[torch.Tensor]) -> Any:
    """One leaf of what the module returned."""
    if part.kind == "value":
        return part.at
    if part.kind == "input":
        return originals[part.at]
    if part.kind == "result":
        return results[part.at]
    base = originals[part.at] if part.history else originals[part.at].detach()
    size, strides, offset = part.place
    return base.as_strided(size, strides, base.storage_offset() + offset)


def _fitting(grad: torch.Tensor | None, kind: tuple[Any, ...]) -> torch.Tensor:
    """A cotangent as the backward graph takes it: in the memory order of its result, zero where there is none."""
    if grad is None:
        return empty_like_cotangent(kind).zero_()
    if grad.stride() == kind[1] and not grad.is_conj() and not grad.is_neg():
        return plain_alias(grad)
    return empty_like_cotangent(kind).copy_(grad)


class ModuleNode(OpaqueNode):
    """One call of a compiled module: its backward graph gives the gradients of its parameters and arguments."""

    __slots__ = ("graph",)

    #: What no gradient has come for gets none, as in the eager module.
    none_is_zero = False

    def __init__(self, graph: ModuleGraph, parents: tuple[Any, ...], results: list[torch.Tensor]) -> None:
        super().__init__(graph.title, parents, None, None)
        self.graph = graph
        self.set_results(results, graph.joint.differentiable)

    @property
    def zero_gradient(self) -> Any:
        """A rule of the user's need not answer zero to it: the backward graph runs."""
        return (None,) * self.graph.joint.results

    @property
    def saved_names(self) -> tuple[str, ...]:
        return tuple(map(self.graph.name_of_saved, self.graph.halves.saved))

    @property
    def origin(self) -> str:
        return f"the backward graph of {self.op}"

    def name(self) -> str:
        return f"{self.op}Backward"

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        if any(g is not None and is_batched(g) for g in (grad if isinstance(grad, tuple) else (grad,))):
            raise BatchedGradientError(
                f"{self.op}: a compiled backward graph takes no batch of torch.vmap's. Go row by row."
            )
        saved = list(saved_values(self))
        differentiable = self.graph.joint.differentiable
        grads = [grad[i] for i in differentiable] if isinstance(grad, tuple) else [grad]
        arrived = {number for number, g in enumerate(grads) if g is not None}
        sweep = innermost()
        if sweep is not None and sweep.node is self:
            if not sweep.keep_graph:
                release(self)  # now, so that the graph can let go of each after its last use
            arrived |= {number for number, i in enumerate(differentiable) if self._result(i) in sweep.zero}
        with _as_in_the_graph():
            found = self.graph.gradients(saved, grads, arrived)
        return self._once(found, grads) if recorded else found

    def _result(self, index: int) -> Node | None:
        if self.outputs is None:
            return self
        reference = self.outputs[index]
        return None if reference is None else reference()

    def _once(self, found: list[Any], grads: list[Any]) -> list[Any]:
        """Gradients that can be had, and not be differentiated."""
        parents = (*self.parents, *(g._node for g in grads if type(g) is Tensor and g._node is not None))

        def error() -> Exception:
            return SecondDerivativeError(
                f"second derivative through {self.op}, a compiled module: its backward graph can be differentiated once. Call the module "
                f"itself where you want create_graph=True (compiled._orig_mod), or compile the whole step with the second backward inside "
                f"(tracer.compile(step))."
            )

        return [
            None
            if g is None
            else tracked_alias(g, enter(RaisingNode(f"once:{self.op}", error, parents, g.shape, g.dtype)))
            for g in found
        ]


# ---------------------------------------------------------------------- making
def make_module_graph(
    call: Callable[[], Any],
    title: str,
    reached: Reached,
    tensors: list[torch.Tensor],
    names: list[str],
    backend: Backend,
) -> ModuleGraph:
    """Capture ``call``, which runs the module on ``tensors``, split the graph, and build what runs its halves.

    Raises ``CaptureError`` for what no graph can hold; whatever is raised, nothing has changed.
    """
    started = time.perf_counter()
    joint = capture_module(call, reached, tensors, names)
    built = time.perf_counter()
    made = halves_of(joint, backend if joint.captured.writes is None else "replay")
    seconds = built - started, time.perf_counter() - built
    return ModuleGraph(title, joint, made, names, rules_applied(), *seconds, draws(joint.captured.graph))


def halves_of(joint: Joint, backend: Backend) -> Halves:
    """What runs the graph."""
    chosen = default_backend() if backend is None else backend
    make = halves if joint.wanted else forward_alone
    with _as_in_the_graph(), named_failure("module") if chosen == "inductor" else nullcontext():
        return make(chosen, joint.captured.graph, joint.inputs, joint.results, joint.written)
