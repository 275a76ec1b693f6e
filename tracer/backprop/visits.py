"""The backward pass one call at a time: the engine's own sweep, which stops after each node and shows what passed through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.torch_private import set_grad_enabled
from tracer.backprop.api import as_places, roots_of
from tracer.backprop.hooks import run_post_hooks
from tracer.backprop.progress import begin, end
from tracer.backprop.sweep import Sweep
from tracer.node import Bridge, CallNode, Leaf, Node, OpaqueNode


@dataclass(frozen=True)
class Visit:
    """What a sweep did at one node. No gradient is None but one of zero, on which the sweep spends no memory."""

    node: Node
    #: The gradient of the call's result, after hooks; a tuple with None for a call with several results.
    grad: Any
    #: By position among the node's parents: the gradient passed on, projected, after hooks; a list for an input that is a list.
    passed: dict[int, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """What the rule calls each parent; its position for a call without a rule."""
        node = self.node
        if not isinstance(node, CallNode):
            return [str(i) for i in range(len(node.parents))]
        return [name for bit, (_, name) in enumerate(node.plan.rule.inputs) if node.plan.mask >> bit & 1]


class _SteppingSweep(Sweep):
    """A sweep that notes each visit, retains the graph, and fills no ``.grad``."""

    fast = False

    def __init__(self) -> None:
        super().__init__(keep_graph=True, create_graph=False)
        self.visit: Visit | None = None
        self.waiting: list[Node] = []

    def _visit_all(self, order: list[Node]) -> None:
        self.waiting = order  # one at a time, when they are asked for

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Between two steps the caller's own code runs: the sweep is in progress during each of them alone."""
        mode = torch.is_grad_enabled()
        begin(self)
        set_grad_enabled(False)
        try:
            yield
        finally:
            set_grad_enabled(mode)
            end()

    def _through(self, node: CallNode | OpaqueNode, grad: Any) -> None:
        passed: dict[int, Any] = {}
        grad = self._gradients(node, grad, passed)
        if node.extras is not None and node.extras.post_hooks:
            run_post_hooks(node, passed, grad)
        self.visit = Visit(node, grad, passed)
        for position, result in passed.items():
            self._deliver(node.parents[position], result)

    def _pass_zero_on(self, node: Node) -> None:
        if isinstance(node, CallNode | OpaqueNode):
            self.visit = Visit(node, None, dict.fromkeys(range(len(node.parents))))
        super()._pass_zero_on(node)

    def _reach_leaf(self, leaf: Leaf, buffer: list[Any]) -> None:
        self.visit = Visit(leaf, buffer[0])

    def _reach_bridge(self, bridge: Bridge, grad: torch.Tensor) -> None:
        self.visit = Visit(bridge, grad)

    def push(self, node: CallNode | OpaqueNode, grad: Any) -> dict[int, Any]:
        """What ``node`` alone passes on of a gradient, which is added nowhere."""
        passed: dict[int, Any] = {}
        with self.stepping():
            self._gradients(node, grad, passed)
        return passed


def visits(outputs: Any, grad_outputs: Any = None, targets: set[Node] | None = None) -> Iterator[Visit]:
    """Sweep back from ``outputs`` and yield each call as it is visited, then the leaves as their gradients are complete.

    With ``targets`` the nodes that lead to one are visited alone. The graph is retained, ``.grad`` stays as it is, hooks on tensors and
    nodes run as in ``torch.autograd.grad``. Raises what a sweep raises, at the step that does.
    """
    sweep = _SteppingSweep()
    sweep.run(roots_of(as_places(outputs), grad_outputs), targets, through_bridges=True)
    for node in sweep.waiting:
        sweep.visit = None
        with sweep.stepping():
            sweep._visit_node(node)
        if sweep.visit is not None:
            yield sweep.visit


def push(node: CallNode | OpaqueNode, grad: Any) -> dict[int, Any]:
    """What one call passes on of a gradient of its result, by position among its parents."""
    return _SteppingSweep().push(node, grad)
