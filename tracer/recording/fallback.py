"""The derivative of a function without a rule, taken from torch's own autograd; only where the user asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase, tree_flatten, tree_unflatten
from tracer.errors import FreedGraphError, InPlaceError, SecondDerivativeError, UnsupportedError
from tracer.graph import enter
from tracer.node import Node, OpaqueNode, RaisingNode
from tracer.notes.cuts import note_cut
from tracer.recording.native import as_native
from tracer.recording.parents import any_node
from tracer.tracked_tensor import plain_alias, tracked_alias


class _State(threading.local):
    torch: bool = False


_state = _State()


def fallback_active() -> bool:
    """Whether missing derivatives are taken from torch in this thread."""
    return _state.torch


@contextmanager
def fallback(source: str) -> Iterator[None]:
    """Take the derivatives of functions without a rule from torch's own autograd, for the calls made inside the block.

    The only ``source`` is "torch"; any other raises ``UnsupportedError``. The graph shows such calls as ``torch:<name>``.
    First derivatives only: a second one through such a call raises ``SecondDerivativeError``.
    """
    if source != "torch":
        raise UnsupportedError(f"fallback({source!r}): the only source of missing derivatives is 'torch'")
    before, _state.torch = _state.torch, True
    try:
        yield
    finally:
        _state.torch = before


class TorchNode(OpaqueNode):
    """A call that torch's own autograd has run, on leaves of its own: it is asked for their gradients."""

    __slots__ = ("edges", "items", "leaves")

    #: What torch's autograd did not reach has no gradient, as in torch: a parameter that the call left aside keeps ``.grad`` None.
    none_is_zero = False

    def __init__(
        self,
        op: str,
        parents: list[Node],
        leaves: list[torch.Tensor],
        edges: list[GradientEdge],
        items: dict[int, torch.Tensor],
    ) -> None:
        super().__init__(op, tuple(parents), None, None)
        #: The arguments as leaves of torch's. Where the call reads state too, ``edges`` name all of its inputs instead.
        self.leaves = leaves
        self.edges = edges
        #: The results that have a history in torch's autograd, by position.
        self.items = items

    @property
    def origin(self) -> str:
        return f"torch's own autograd, asked for {self.op},"

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        if not self.items:
            raise FreedGraphError(
                f"backward reached {self.op} a second time: torch's own autograd, which has the history of that call, let go of it in the "
                f"first pass. Pass retain_graph=True to the first."
            )
        grads = dict.fromkeys(self.items, grad) if self.outputs is None else dict(enumerate(grad))
        asked = [(item, plain_alias(grads[i])) for i, item in self.items.items() if grads[i] is not None]
        outputs, cotangents = [t for t, _ in asked], [g for _, g in asked]
        found = self._at_edges(outputs, cotangents) if self.edges else self._at_leaves(outputs, cotangents)
        if not recorded:
            return found
        # The backward pass is recorded, and this part of it cannot be: who differentiates through it is told.
        above = (*self.parents, *(n for g in grads.values() if g is not None and (n := any_node(g)) is not None))
        return [None if g is None else self._once(g, above) for g in found]

    def let_go(self) -> None:
        self.items, self.leaves, self.edges = {}, [], []

    def _at_leaves(self, outputs: list[torch.Tensor], cotangents: list[torch.Tensor]) -> list[torch.Tensor | None]:
        # backward, not grad: torch's reentrant checkpoint takes no other, and leaves inside a custom Function get theirs too.
        torch.autograd.backward(outputs, cotangents, retain_graph=True)
        found = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        return found

    def _at_edges(self, outputs: list[torch.Tensor], cotangents: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        # grad, not backward: it would fill .grad of the state.
        with hooks_taken_off(edge.node.variable for edge in self.edges if hasattr(edge.node, "variable")):
            return torch.autograd.grad(outputs, self.edges, cotangents, retain_graph=True, allow_unused=True)

    def _once(self, grad: torch.Tensor, parents: tuple[Node, ...]) -> torch.Tensor:
        """``grad`` with a history that raises when it is differentiated."""

        def error() -> Exception:
            return SecondDerivativeError(
                f"second derivative through {self.op}: its first one comes from torch's own autograd, which glassgrad cannot record. "
                f"Write a rule for it."
            )

        node = enter(RaisingNode(self.op, error, parents, grad.shape, grad.dtype))
        node.place = self.place  # the user's line is that of the call itself
        return tracked_alias(grad, node)


@contextmanager
def hooks_taken_off(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """Native hooks of leaves do not run inside the block: they run once, with the whole gradient, when our sweep comes to the leaf."""
    with DisableTorchFunctionSubclass():
        hooks = [h for leaf in leaves if (h := leaf._backward_hooks)]
    before = [dict(h) for h in hooks]
    for h in hooks:
        h.clear()
    try:
        yield
    finally:
        for h, entries in zip(hooks, before, strict=True):
            h.update(entries)


class _Inputs:
    """What a call under torch's autograd is given: plain tensors, those that want a gradient as leaves of torch's."""

    def __init__(self) -> None:
        self.parents: list[Node] = []
        self.leaves: list[torch.Tensor] = []
        #: The plain aliases of the tensors that want none.
        self.constants: list[torch.Tensor] = []

    def native(self, nest: Any) -> Any:
        """The tensors of a nest of arguments as torch is to see them."""
        if isinstance(nest, torch.Tensor):
            node = any_node(nest)
            with DisableTorchFunctionSubclass():
                plain = plain_alias(nest)
            if node is None:
                self.constants.append(plain)
                return plain
            self.parents.append(node)
            self.leaves.append(plain.requires_grad_())
            return plain
        if isinstance(nest, dict):
            return {name: self.native(value) for name, value in nest.items()}
        if isinstance(nest, tuple) and hasattr(nest, "_fields"):
            return type(nest)(*map(self.native, nest))
        if type(nest) in (list, tuple):
            return type(nest)(map(self.native, nest))
        return nest


def record_with_torch(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    state: Sequence[torch.Tensor] = (),
    new_state: Callable[[], list[torch.Tensor]] = list,
) -> tuple[Any, list[torch.Tensor]]:
    """Run ``func`` under torch's autograd on detached inputs and leave a node that asks it for the gradients.

    ``func`` may be user code: interception is on while it runs. ``state``: the tensors that it reads beside its arguments;
    ``new_state()``: those with a history that it has left behind, which are returned tracked, after the result.
    """
    inputs, given = _Inputs(), (args, kwargs, state)
    args, kwargs = inputs.native(args), inputs.native(kwargs)
    wanted = {id(tensor): tensor for tensor in state if any_node(tensor) is not None}
    inputs.parents += [node for tensor in wanted.values() if (node := any_node(tensor)) is not None]
    with as_native(wanted.values()):
        edges = [get_gradient_edge(t) for t in (*inputs.leaves, *wanted.values())] if wanted else []
        result = func(*args, **kwargs)
        _refuse_writes(inputs.constants, name)
        left_behind = new_state()
    is_tensor = isinstance(result, torch.Tensor)
    items, structure = ([result], None) if is_tensor else tree_flatten(result)
    count = len(items)
    items += left_behind
    with DisableTorchFunctionSubclass():
        # What a custom Function returns may be of our class and yet have a history in torch's autograd: ask torch, and go on plainly.
        native_grad: Any = TensorBase.requires_grad
        items = [
            item.as_subclass(torch.Tensor) if isinstance(item, torch.Tensor) and native_grad.__get__(item) else item
            for item in items
        ]
    carrying = {
        i: item
        for i, item in enumerate(items)
        if type(item) is torch.Tensor and item.requires_grad and id(item) not in wanted
    }
    if not carrying:
        note_cut("inside", name, given)
        return result, []
    node = TorchNode(f"torch:{name}", inputs.parents, inputs.leaves, edges, carrying)
    node.set_results(items, list(carrying), several=not is_tensor or bool(left_behind))
    enter(node, items)
    for i, item in carrying.items():
        items[i] = tracked_alias(item, node.of_result(i, item))
    return items[0] if is_tensor else tree_unflatten(items[:count], structure), items[count:]


def _refuse_writes(constants: list[torch.Tensor], name: str) -> None:
    """Raise ``InPlaceError`` where a call has written what requires grad into an argument that did not."""
    for constant in constants:
        if constant.requires_grad:
            raise InPlaceError(
                f"{name} wrote a value that requires grad in place into an argument of shape {tuple(constant.shape)}, which glassgrad "
                f"does not see. Let it write into a clone and return that."
            )
