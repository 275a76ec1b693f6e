"""``steps``: the backward pass, one call at a time. It is the engine's own sweep, in its general lane, which halts after each node."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ops_registry.rule import CallPlan
from ops_registry.scopes import Replacements, Substitution
from ops_registry.sites import Site
from ops_registry.torch_private import set_grad_enabled
from tracer.backprop.api import Places, Weights, as_tuple, roots_of
from tracer.backprop.order import hooked_leaves_early
from tracer.backprop.progress import begin, end
from tracer.backprop.replay import Replay, other_plans
from tracer.graph import backward_order
from tracer.node import Bridge, CallNode, Leaf, Node, OpaqueNode, Output
from tracer.reports.report import as_text, place
from tracer.reports.subjects import check_loss


@dataclass(frozen=True)
class Step:
    """What backward does at one call, or, without ``inputs``, what arrives at a leaf."""

    node: Node
    #: The gradient of the result, as the rule gets it, after hooks: a tuple with None for a call with several results. None is a
    #: gradient of zero, of which the rule is not asked.
    grad: Any
    #: The gradients that go on to the inputs that want one, in the order of the op's arguments and of ``node.parents``, projected onto
    #: them; by name where a rule names its inputs (``step.inputs.weight``), else by number. None is a gradient of zero. A list of
    #: tensors has a list.
    inputs: tuple[Any, ...]

    @property
    def op(self) -> str:
        """The op's name, ``"leaf"`` where a gradient ends, ``"torch"`` where it goes on into torch's own autograd."""
        return self.node.op

    @property
    def site(self) -> Site | None:
        """Where the call was made; None where no graph with ``sites`` was open."""
        return self.node.site

    @property
    def tensor(self) -> torch.Tensor | None:
        """The leaf that the gradient is for, if it is one and alive."""
        return self.node.variable if isinstance(self.node, Leaf) else None

    def __str__(self) -> str:
        where = f" at {place(self.site)}" if self.site is not None else ""
        names = getattr(self.inputs, "_fields", ())
        inputs = ", ".join(f"{name.lstrip('_')}: {_told(g)}" for name, g in zip(names, self.inputs, strict=True))
        return f"#{self.node.serial} {self.op}{where}: {_told(self.grad)}" + (f" -> {inputs}" if inputs else "")


def _told(grad: Any) -> str:
    return "zero" if grad is None else as_text(grad)


def steps(outputs: Places, grad_outputs: Weights = None, rules: Replacements | None = None) -> Iterator[Step]:
    """The backward pass of ``outputs``, call by call, newest first, and the leaves with their gradients.

    ``grad_outputs`` weights the outputs, as in ``torch.autograd.grad``. The graph is retained, and no ``.grad`` is touched, nor that of
    tensors that retain it. Hooks on tensors and nodes run as in any backward pass, each when its node's turn comes; those that run once
    ``.grad`` is filled do not. A pass that is not gone through to its end leaves nothing behind.

    A call with several results is one step. So is all that was recorded inside one level of ``torch.vmap``. Where the history goes on in
    torch's own autograd, a step has the gradient that arrives there. A node to which no gradient goes has none.

    ``rules`` take the place of those that the calls were recorded under, as in ``tracer.replay``, with the same conditions and errors.

    Raises what ``torch.autograd.grad`` raises: the arguments are looked at at once, and a call when its turn comes.
    """
    check_loss("steps", outputs, several=True)
    roots = roots_of(as_tuple(outputs), grad_outputs, False)
    nodes = [node for node, _ in roots]
    leaves: set[Node] = {node for node in backward_order(nodes) if isinstance(node, Leaf)}
    plans = {} if rules is None else other_plans(Substitution(rules), nodes, leaves)
    return SteppedSweep(plans).steps(roots)


class SteppedSweep(Replay):
    """A sweep that halts after every node, and shows what came and what went on."""

    watched = True

    def __init__(self, plans: Mapping[Node, CallPlan]) -> None:
        super().__init__(plans)
        #: Gradient and gradients of the inputs of the call that was visited last.
        self._seen: tuple[Any, dict[int, Any]] | None = None

    def steps(self, roots: list[tuple[Node, torch.Tensor]]) -> Iterator[Step]:
        """Go from ``roots`` to the leaves."""
        self._begin_at(roots)
        order = hooked_leaves_early(backward_order(list(self.grads)))
        self.targets = {node for node in order if isinstance(node, Leaf)}
        self.needed = None  # all of them: no set of them is to be gone through at every halt
        for node in order:
            step = self._halt_after(node, order)
            if step is not None:
                yield step
        with self:
            pass  # what hooks have queued is called as at the end of any sweep

    def _halt_after(self, node: Node, order: list[Node]) -> Step | None:
        """Visit one node. Outside of this the sweep is not in progress: the user's code runs then."""
        self.order = order
        self._seen = None
        arrived, zero = self.grads.get(node), node in self.zero
        mode = torch.is_grad_enabled()
        begin(self)
        set_grad_enabled(False)
        try:
            self._visit_node(node)
        finally:
            set_grad_enabled(mode)
            end()
        if isinstance(node, Output) or (arrived is None and not zero):
            return None  # the gradient of one of several results stands in the step of the call
        if isinstance(node, CallNode | OpaqueNode):
            if self._seen is None:
                return Step(node, None, _named(node, {}))
            grad, passed_on = self._seen
            return Step(node, grad, _named(node, passed_on))
        grad = self.found.pop(node, arrived)
        if isinstance(node, Bridge):
            grad = self.bridged.pop()[1] if self.bridged else grad
        return None if grad is None else Step(node, grad, ())

    def _hand_on(self, node: CallNode | OpaqueNode, grad: Any, grad_inputs: dict[int, Any]) -> None:
        self._seen = grad, grad_inputs
        super()._hand_on(node, grad, grad_inputs)


def _named(node: CallNode | OpaqueNode, passed_on: dict[int, Any]) -> tuple[Any, ...]:
    values = [passed_on.get(position) for position in range(len(node.parents))]
    return _inputs_type(input_names(node))._make(values)


def pairs(parent: Any, grad: Any) -> Iterator[tuple[Node, Any]]:
    """Each node among one of a step's parents, and what goes on to it: several of each for a list of tensors."""
    if type(parent) is not tuple:
        yield parent, grad
        return
    grads = grad if isinstance(grad, list | tuple) else (None,) * len(parent)
    yield from ((p, g) for p, g in zip(parent, grads, strict=True) if p is not None)


def input_names(node: Node) -> tuple[str, ...]:
    """The names of the inputs that ``node`` passes gradients on to, one for each of its parents; their numbers where no rule names them."""
    if isinstance(node, CallNode):
        return tuple(name for bit, (_, name) in enumerate(node.plan.rule.inputs) if node.plan.mask >> bit & 1)
    return tuple(f"_{i}" for i in range(len(node.parents)))


@cache
def _inputs_type(names: tuple[str, ...]) -> Any:
    return namedtuple("inputs", names, rename=True)
