"""Gradients that are 0 but for rounding: a bias before a norm layer, a shift before a softmax, a scale that is divided out again.

A gradient is linear in the gradient of the loss; what rounding has left of a sum that cancels is not. So the backward pass is run from
other weights of the loss, and what does not keep to their ratio is rounding. That is done where a gradient is suspiciously small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.backprop.accumulate import leaving_grad_alone
from tracer.backprop.sweep import Sweep
from tracer.functions.function_node import FunctionNode
from tracer.graph import Graph
from tracer.node import Node, flat
from tracer.reports.badness import values_in
from tracer.reports.gradient_births import has_hooks
from tracer.reports.steps import Step, steps

#: No powers of 2, by which all roundings would come out the same.
_OTHER_WEIGHTS = (0.7364, 1.9)
#: What differs by so much of itself is mostly rounding: others keep to the ratio in all digits but the last ones.
_MOSTLY = 0.1
#: Below so many roundings of the largest gradient, and in any dtype below this part of it, one is looked at.
_ROUNDINGS, _PART = 1e3, 1e-2
#: Of a gradient so many elements are compared; in a graph of more calls none are.
_ELEMENTS, _CALLS = 256, 20_000


def is_suspicious(norm: float, largest: float, dtype: torch.dtype | None) -> bool:
    """Whether a gradient is so small beside the largest that it may be rounding."""
    if dtype is None or not (dtype.is_floating_point or dtype.is_complex):
        return False
    return 0 < norm < min(_ROUNDINGS * torch.finfo(dtype).eps, _PART) * max(largest, 1.0)


class Rounding:
    """Which gradients of ``loss`` are rounding, and where they became so: by the serial number of what they came for.

    ``order`` is that of the backward pass, ``suspects`` what may have such a gradient: where none has, no place is looked for.
    """

    def __init__(self, loss: torch.Tensor, order: list[Node], suspects: list[Node]) -> None:
        #: The call that passed such a gradient on, though what came to it was none.
        self.made_by: dict[int, Node] = {}
        if len(order) > _CALLS or any(_may_bend(node) for node in order):
            return
        at_suspects = _samples_at(loss, order[0], suspects, 1.0)
        others = [(weight, _samples_at(loss, order[0], suspects, weight)) for weight in _OTHER_WEIGHTS]
        if not any(
            _is_rounding(at_suspects[n], there[n] / weight)
            for weight, there in others
            for n in at_suspects.keys() & there.keys()
        ):
            return
        one = _sampled(loss, 1.0)
        rounded: set[tuple[int, int]] = set()
        for weight in _OTHER_WEIGHTS:
            other = _sampled(loss, weight)
            rounded.update(key for key in one.keys() & other.keys() if _is_rounding(one[key], other[key] / weight))
        for node in order:  # newest first: each knows what its users have sent
            came = (node.serial, node.serial) in rounded
            if came:
                self.made_by.setdefault(node.serial, node)
            for parent in flat(node.parents):
                if (node.serial, parent.serial) in rounded:
                    self.made_by.setdefault(parent.serial, self.made_by[node.serial] if came else node)


def _may_bend(node: Node) -> bool:
    """Whether the user's own code may make a gradient that is not linear in what comes."""
    return isinstance(node, FunctionNode) or has_hooks(node) or bool(node.extras is not None and node.extras.post_hooks)


def _samples_at(loss: torch.Tensor, root: Node, suspects: list[Node], weight: float) -> dict[Node, torch.Tensor]:
    """Some elements of the gradients of a few."""
    with Graph(), leaving_grad_alone():
        found = Sweep(keep_graph=True, create_graph=False).run([(root, _weights(loss, weight))], set(suspects))
    return {node: sample for node, grad in found.items() if (sample := _sample(grad)) is not None}


def _weights(loss: torch.Tensor, weight: float) -> torch.Tensor:
    with DisableTorchFunctionSubclass():
        return torch.full_like(loss, weight, requires_grad=False).as_subclass(torch.Tensor)


def _sampled(loss: torch.Tensor, weight: float) -> dict[tuple[int, int], torch.Tensor]:
    """Some elements of each gradient of one backward pass: of what came to a node, and of what went on from one to another."""
    found: dict[tuple[int, int], torch.Tensor] = {}
    with Graph(), leaving_grad_alone():
        for step in steps(loss, _weights(loss, weight)):
            for one, other, grad in _gradients(step):
                if (sample := _sample(grad)) is not None:
                    found[one.serial, other.serial] = sample
    return found


def _gradients(step: Step) -> Iterator[tuple[Node, Node, Any]]:
    if isinstance(step.grad, tuple):
        for index, part in enumerate(step.grad):
            output = step.node.at(index)
            if output is not None:
                yield output, output, part
    else:
        yield step.node, step.node, step.grad
    for parent, grad in zip(step.node.parents, step.inputs, strict=True):
        if type(parent) is not tuple:
            yield step.node, parent, grad


def _sample(grad: Any) -> torch.Tensor | None:
    with DisableTorchFunctionSubclass(), torch.no_grad():
        plain = values_in(grad) if isinstance(grad, torch.Tensor) else None
        if plain is None or not plain.numel():
            return None
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        plain = plain.reshape(-1)
        return plain[:: -(-plain.numel() // _ELEMENTS)].to("cpu", torch.float64, copy=True)


def _is_rounding(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((other - one).norm() > _MOSTLY * one.norm())
