"""The derivative of a function without a rule, taken from torch's own autograd; only where the user asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase
from tracer.errors import SecondDerivativeError, UnsupportedError
from tracer.graph import enter
from tracer.node import Node, OpaqueNode, RaisingNode
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

    __slots__ = ("items", "leaves")

    def __init__(
        self, op: str, parents: list[Node], leaves: list[torch.Tensor], items: dict[int, torch.Tensor]
    ) -> None:
        super().__init__(op, tuple(parents), None, None)
        self.leaves = leaves
        #: The results that have a history in torch's autograd, by position.
        self.items = items

    @property
    def origin(self) -> str:
        return f"torch's own autograd, asked for {self.op},"

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        grads = dict.fromkeys(self.items, grad) if self.outputs is None else dict(enumerate(grad))
        asked = [(item, plain_alias(grads[i])) for i, item in self.items.items() if grads[i] is not None]
        # backward, not grad: torch's reentrant checkpoint takes no other, and leaves inside a custom Function get theirs too.
        torch.autograd.backward([t for t, _ in asked], [g for _, g in asked], retain_graph=True)
        found = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        if not recorded:
            return found
        # The backward pass is recorded, and this part of it cannot be: who differentiates through it is told.
        above = (*self.parents, *(n for g in grads.values() if g is not None and (n := any_node(g)) is not None))
        return [None if g is None else self._once(g, above) for g in found]

    def _once(self, grad: torch.Tensor, parents: tuple[Node, ...]) -> torch.Tensor:
        """``grad`` with a history that raises when it is differentiated."""

        def error() -> Exception:
            return SecondDerivativeError(
                f"second derivative through {self.op}: its first one comes from torch's own autograd, which glassgrad cannot record. "
                f"Write a rule for it."
            )

        return tracked_alias(grad, enter(RaisingNode(self.op, error, parents, grad.shape, grad.dtype)))


def record_with_torch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """Run ``func`` under torch's autograd on detached inputs and leave a node that asks it for the gradients.

    ``func`` may be user code: interception is on while it runs.
    """
    parents: list[Node] = []
    leaves: list[torch.Tensor] = []
    result = func(*_native_leaves(args, parents, leaves), **_native_leaves(kwargs, parents, leaves))
    single = isinstance(result, torch.Tensor)
    items = [result] if single else list(result) if isinstance(result, tuple | list) else []
    with DisableTorchFunctionSubclass():
        # What a custom Function returns may be of our class and yet have a history in torch's autograd: ask torch, and go on plainly.
        native_grad: Any = TensorBase.requires_grad
        items = [
            item.as_subclass(torch.Tensor) if isinstance(item, torch.Tensor) and native_grad.__get__(item) else item
            for item in items
        ]
    carrying = {i: item for i, item in enumerate(items) if type(item) is torch.Tensor and item.requires_grad}
    if not carrying:
        return result
    node = TorchNode(f"torch:{name}", parents, leaves, carrying)
    node.set_results(items, list(carrying), several=not single)
    enter(node)
    for i, item in carrying.items():
        items[i] = tracked_alias(item, node.of_result(i, item))
    if single:
        return items[0]
    return type(result)(items) if hasattr(result, "n_fields") or type(result) in (list, tuple) else tuple(items)


def _native_leaves(nest: Any, parents: list[Node], leaves: list[torch.Tensor]) -> Any:
    """The arguments as plain tensors, those that want a gradient as leaves of torch's.

    The leaves are added to ``leaves``, their nodes to ``parents``.
    """
    if isinstance(nest, torch.Tensor):
        node = any_node(nest)
        with DisableTorchFunctionSubclass():
            plain = plain_alias(nest)
        if node is not None:
            parents.append(node)
            leaves.append(plain.requires_grad_())
        return plain
    if isinstance(nest, dict):
        return {name: _native_leaves(value, parents, leaves) for name, value in nest.items()}
    if type(nest) in (list, tuple):
        return type(nest)(_native_leaves(value, parents, leaves) for value in nest)
    return nest
