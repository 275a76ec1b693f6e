"""Hooks that the user has put on nodes: what they see of a gradient on its way, and what they put in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ops_registry.errors import RuleResultError
from tracer.naming import describe_node
from tracer.node import Hook, Leaf, Node
from tracer.tracked_tensor import Tensor


def run_hooks(node: Node, hooks: Iterable[Hook], grad: Any) -> Any:
    """The gradient of one tensor after the hooks on it; None where no gradient has come, which hooks are told as in torch."""
    for hook in list(hooks):
        new = hook(grad)
        if new is not None:
            _check(node, grad, new)
            grad = new
    return grad


def run_prehooks(node: Node, grad: Any) -> Any:
    """The gradient of ``node`` (a tuple for a call with several results) after the hooks that see it before the rule does."""
    assert node.extras is not None
    for hook in list((node.extras.prehooks or {}).values()):
        before = grad if isinstance(grad, tuple) else (grad,)
        new = hook(before)
        if new is None:
            continue
        given = tuple(new) if isinstance(new, tuple | list) else (new,)
        if len(given) != len(before):
            raise RuleResultError(
                f"a hook before {describe_node(node)} returned {len(given)} gradients in place of {len(before)}"
            )
        for one, other in zip(before, given, strict=True):
            if one is not None or other is not None:
                _check(node, one, other)
        grad = given if isinstance(grad, tuple) else given[0]
    return grad


def native_hooks(leaf: Leaf, kind: str) -> list[Callable[[Any], Any]]:
    """The hooks that torch itself holds on an adopted leaf: they are the user's. ``kind`` is the attribute that they stand in."""
    tensor = leaf.variable if leaf.adopted else None
    if tensor is None or type(tensor) is Tensor:  # tracked since: its node holds the hooks
        return []
    return list((getattr(tensor, kind, None) or {}).values())


def hooked_in_torch(leaf: Leaf) -> bool:
    """Whether torch holds hooks on it."""
    return bool(native_hooks(leaf, "_backward_hooks") or native_hooks(leaf, "_post_accumulate_grad_hooks"))


def tell_results_without_gradient(node: Node, grad: Any) -> None:
    """Run the hooks on those of several results of one call that no gradient has come for; ``grad`` is what has come for all."""
    assert node.extras is not None
    for index, hooks in (node.extras.output_hooks or {}).items():
        if grad is None or grad[index] is None:
            run_hooks(node, hooks.values(), None)


def run_post_hooks(node: Node, grad_inputs: dict[int, Any], grad: Any) -> None:
    """Show ``hook(grad_inputs, grad_outputs)`` what the call passes on, by position among its parents, and take what it returns instead.

    As in torch there is one entry for each input that a gradient could go to, None where none goes.
    """
    assert node.extras is not None
    outputs = grad if isinstance(grad, tuple) else (grad,)
    places = node.gradient_places
    for hook in list(node.extras.post_hooks.values()):
        inputs = tuple([None if place is None else _get(grad_inputs, *place) for place in places])
        new = hook(inputs, outputs)
        if new is None:
            continue
        given = new if isinstance(new, tuple | list) else (new,)
        if len(given) != len(inputs):
            raise RuleResultError(
                f"a hook on {describe_node(node)} returned {len(given)} gradients in place of {len(inputs)}"
            )
        for place, before, after in zip(places, inputs, given, strict=True):
            if before is not None:
                _check(node, before, after)
            if place is not None and after is not None:
                _set(grad_inputs, *place, after)


def _get(grad_inputs: dict[int, Any], position: int, within: int | None) -> Any:
    value = grad_inputs.get(position)
    return value if within is None or value is None else value[within]


def _set(grad_inputs: dict[int, Any], position: int, within: int | None, value: torch.Tensor) -> None:
    if within is None:
        grad_inputs[position] = value
    elif grad_inputs.get(position) is not None:
        grad_inputs[position][within] = value


def _check(node: Node, before: torch.Tensor | None, after: Any) -> None:
    if before is None:
        raise RuleResultError(
            f"a hook on {describe_node(node)} returned a gradient where none has come: return None there"
        )
    if not isinstance(after, torch.Tensor) or after.shape != before.shape:
        given = f"shape {tuple(after.shape)}" if isinstance(after, torch.Tensor) else type(after).__name__
        raise RuleResultError(
            f"a hook on {describe_node(node)} returned {given} in place of a gradient of shape {tuple(before.shape)}"
        )


def hooks_on_filling(leaf: Leaf, buffer: list[Any]) -> list[Callable[[torch.Tensor], Any]]:
    """What is to be called once ``.grad`` of a leaf is filled. Hooks before its node may change the gradient in ``buffer`` first."""
    extras = leaf.extras
    if extras is None and not leaf.adopted:
        return []
    ours = None if extras is None else extras.accumulate_hooks
    hooks: list[Callable[[torch.Tensor], Any]] = [
        *(ours or {}).values(),
        *native_hooks(leaf, "_post_accumulate_grad_hooks"),
    ]
    if extras is not None and (extras.prehooks or extras.post_hooks):
        filled = buffer[0] = run_prehooks(leaf, buffer[0])
        hooks.append(lambda _: run_post_hooks(leaf, {}, filled))
    return hooks
