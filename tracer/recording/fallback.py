"""The derivative of a function without a rule, taken from torch's own autograd; only where the user asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase
from tracer.errors import SecondDerivativeError, UnsupportedError
from tracer.graph import enter
from tracer.node import Node, joint_plan
from tracer.recording.parents import any_node
from tracer.recording.raising import refusing_alias
from tracer.tracked_tensor import Tensor, plain_alias


class _State(threading.local):
    torch: bool = False


_state = _State()


def fallback_active() -> bool:
    """Whether missing derivatives are taken from torch in this thread."""
    return _state.torch


@contextmanager
def fallback(source: str) -> Iterator[None]:
    """``with fallback("torch"):`` calls of functions without a rule, made inside, get their derivative from torch's own autograd.

    The graph shows them as ``torch:<name>``. First derivatives only: a second one through such a call raises ``SecondDerivativeError``.
    """
    if source != "torch":
        raise UnsupportedError(f"fallback({source!r}): the only source of missing derivatives is 'torch'")
    before, _state.torch = _state.torch, True
    try:
        yield
    finally:
        _state.torch = before


def record_with_torch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """Run ``func`` under torch's autograd on detached inputs and leave a node that asks it for the gradients.

    ``func`` may be user code: interception is on while it runs.
    """
    parents: list[Node] = []
    leaves: list[torch.Tensor] = []

    def native_leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = any_node(value)
            with DisableTorchFunctionSubclass():
                plain = plain_alias(value)
            if node is not None:
                parents.append(node)
                leaves.append(plain.requires_grad_())
            return plain
        if isinstance(value, dict):
            return {k: native_leaf(v) for k, v in value.items()}
        return type(value)(native_leaf(v) for v in value) if type(value) in (list, tuple) else value

    result = func(*native_leaf(args), **native_leaf(kwargs))
    single = isinstance(result, torch.Tensor)
    items = [result] if single else list(result) if isinstance(result, tuple | list) else []
    with DisableTorchFunctionSubclass():
        # What a custom Function returns may be of our class and yet have a history in torch's autograd: ask torch, and go on plainly.
        native_grad: Any = TensorBase.requires_grad
        items = [
            item.as_subclass(torch.Tensor) if isinstance(item, torch.Tensor) and native_grad.__get__(item) else item
            for item in items
        ]
    carrying = [i for i, item in enumerate(items) if type(item) is torch.Tensor and item.requires_grad]
    if not carrying:
        return result

    def ask_torch(grad: Any, kept: tuple[Any, ...], needs: tuple[bool, ...] | None) -> Any:
        grads = (grad,) if single else tuple(grad)
        asked = [(items[i], plain_alias(grads[i])) for i in carrying if grads[i] is not None]
        # backward, not grad: torch's reentrant checkpoint takes no other, and leaves inside a custom Function get theirs too.
        torch.autograd.backward([t for t, _ in asked], [g for _, g in asked], retain_graph=True)
        found = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        if not torch.is_grad_enabled():
            return found
        # The backward pass is recorded, and this part of it cannot be: who differentiates through it is told.
        above = [*parents, *(n for g in grads if g is not None and (n := any_node(g)) is not None)]
        return [None if g is None else refusing_alias(g, f"torch:{name}", error, above) for g in found]

    def error() -> Exception:
        return SecondDerivativeError(
            f"second derivative through torch:{name}: its first one comes from torch's own autograd, which glassgrad cannot record. "
            f"Write a rule for it."
        )

    plan = joint_plan(f"torch:{name}", ask_torch, len(parents), returns_list=not single)
    first = items[carrying[0]]
    node = enter(Node(plan, tuple(parents), first.shape if single else None, first.dtype if single else None))
    if not single:
        node.extra().outputs = [None] * len(items)
    marked = []
    for i, item in enumerate(items):
        plain: Any = item
        if i in carrying:
            plain = plain_alias(item)
            plain.__class__ = Tensor
            plain._node = node if single else node.output(i, plain.shape, plain.dtype)
        marked.append(plain)
    if single:
        return marked[0]
    return type(result)(marked) if hasattr(result, "n_fields") or type(result) in (list, tuple) else tuple(marked)
