"""Hooks that the user has put on nodes: what they see of a gradient on its way, and what they put in its place."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.errors import RuleResultError
from tracer.naming import describe_node
from tracer.node import Extras, Node


def run_hooks(node: Node, extras: Extras, grad: Any) -> Any:
    """The gradient of ``node`` (a tuple for a call with several results) after the hooks on it."""
    for hook in list(extras.hooks.values()):
        new = hook(grad)
        if new is None:
            continue
        if isinstance(grad, tuple):
            for before, after in zip(grad, new, strict=True):
                if before is not None:
                    _check(node, before, after)
        else:
            _check(node, grad, new)
        grad = new
    return grad


def run_post_hooks(node: Node, grad_inputs: dict[int, Any], grad: Any) -> None:
    """Show ``hook(grad_inputs, grad_outputs)`` what the call passes on, by position among its parents, and take what it returns instead.

    As in torch there is one entry for each tensor that a gradient can go to, None where none goes.
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


def _check(node: Node, before: torch.Tensor, after: Any) -> None:
    if not isinstance(after, torch.Tensor) or after.shape != before.shape:
        given = f"shape {tuple(after.shape)}" if isinstance(after, torch.Tensor) else type(after).__name__
        raise RuleResultError(
            f"a hook on {describe_node(node)} returned {given} in place of a gradient of shape {tuple(before.shape)}"
        )
