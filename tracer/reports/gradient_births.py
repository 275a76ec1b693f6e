"""Where nan and inf are born in the backward pass: the rules, hooks and sums that make them of finite gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from ops_registry.errors import GlassgradError
from tracer.backprop.accumulate import leaving_grad_alone
from tracer.backprop.hooks import native_hooks
from tracer.func.vmapped import VmapNode
from tracer.node import Bridge, Leaf, Node, flat
from tracer.reports.badness import FINE, around, at, bad_elements, element, state_of
from tracer.reports.known_values import known_values
from tracer.reports.steps import Step, input_names, steps

#: Of so many the values around are told.
_TOLD = 50


@dataclass(eq=False)
class GradientBirth:
    """One step of backward at which nan or inf came up."""

    node: Node
    state: int
    dtype: torch.dtype | None
    #: ``rule``, ``hook``, or ``sum`` of several gradients.
    source: str
    #: The gradient that it made, and what the call had been given and had returned at the same place.
    gradient: str
    given: str
    #: Whether the gradient that came in was 0 there: a branch that was not taken.
    zero_gradient: bool
    #: Whether it comes to a leaf.
    reaches: bool = False
    #: The call whose rule made nan of the inf that was born here.
    turned: Node | None = None


class Backward:
    """A backward pass, and where its gradients stop to be finite."""

    def __init__(self) -> None:
        #: By the node at which each came up, in the order of the pass.
        self.births: dict[Node, GradientBirth] = {}
        #: Why the pass could not be gone through to its end.
        self.error: GlassgradError | None = None
        #: Leaves whose gradient is bad.
        self.leaves: list[torch.Tensor] = []
        #: By node: what is behind the bad gradient that was sent to it; and where it sent one, in the order of the pass.
        self._from: dict[Node, GradientBirth] = {}
        self._sends: dict[Node, list[Node]] = {}

    def go_through(self, loss: torch.Tensor) -> None:
        """Look at every step of the backward pass of ``loss``."""
        try:
            one = torch.ones(loss.shape, dtype=loss.dtype, device=loss.device)
            with leaving_grad_alone():
                for step in steps(loss, one):
                    self.look_at(step)
        except GlassgradError as error:
            self.error = error

    def look_at(self, step: Step) -> None:
        """Take note of one step. Those at which all is finite can be left out."""
        node = step.node
        came = state_of(step.grad) > FINE
        behind = None
        for at_node, grad in _arrived(step):
            sent = self._from.pop(at_node, None)
            if state_of(grad) > FINE:
                behind = behind or sent or self._made_on_arrival(node, grad)
                if at_node is not node:
                    self._sends[at_node] = [node]
        if came and isinstance(node, Leaf | Bridge):
            self._sends[node] = []
            if step.tensor is not None:
                self.leaves.append(step.tensor)
        bad = [(state_of(grad), name, parent, grad) for name, parent, grad in _passed_on(step)]
        bad = [item for item in bad if item[0] > FINE]
        if not bad:
            return
        worst = max(bad, key=lambda item: item[0])
        if not came:
            behind = self._born(step, worst[0], worst[1], worst[3])
        assert behind is not None
        if worst[0] > max(state_of(step.grad), behind.state) and behind.turned is None:
            behind.turned = node
        for _, _, parent, _ in bad:
            self._from.setdefault(parent, behind)
            self._sends.setdefault(node, []).append(parent)

    def _made_on_arrival(self, node: Node, grad: Any) -> GradientBirth:
        """By a hook, or by the sum of what had come there."""
        gradient = _gradient(grad, "gradient", None) if len(self.births) < _TOLD else ""
        source = "hook" if has_hooks(node) else "sum"
        birth = self.births[node] = GradientBirth(node, state_of(grad), _dtype(grad), source, gradient, "", False)
        return birth

    def _born(self, step: Step, bad: int, name: str, grad: torch.Tensor) -> GradientBirth:
        node = step.node
        came = step.grad if isinstance(step.grad, torch.Tensor) else None
        zero = False
        gradient = given = ""
        if len(self.births) < _TOLD:
            where, _ = bad_elements(grad)
            zero = bool(where) and came is not None and element(came, where[0], grad.shape) in ("0", "-0")
            gradient = _gradient(grad, f"gradient of {name}" if name.isidentifier() else "gradient", came)
            given = around(where[0], grad.shape, known_values(node)) if where else ""
        hooked = node.extras is not None and bool(node.extras.post_hooks)
        birth = self.births[node] = GradientBirth(
            node, bad, _dtype(grad), "hook" if hooked else "rule", gradient, given, zero
        )
        return birth

    def follow(self) -> None:
        """Find out which of them come to a leaf."""
        reaching: set[Node] = set()
        for node, sent in reversed(self._sends.items()):
            if isinstance(node, Leaf | Bridge) or not reaching.isdisjoint(sent):
                reaching.add(node)
        for birth in self.births.values():
            birth.reaches = birth.node in reaching or self.error is not None


def _arrived(step: Step) -> Iterator[tuple[Node, Any]]:
    """What came for the node, or for each of its results."""
    if not isinstance(step.grad, tuple):
        yield step.node, step.grad
        return
    for index, part in enumerate(step.grad):
        if part is not None:
            yield step.node.at(index) or step.node, part


def _passed_on(step: Step) -> Iterator[tuple[str, Node, torch.Tensor]]:
    """Each gradient that goes on, with its name and the node that it goes to."""
    for name, parent, grad in zip(input_names(step.node), step.node.parents, step.inputs, strict=False):
        if grad is None:
            continue
        if type(parent) is not tuple:
            yield name.lstrip("_"), parent, grad
            continue
        for i, (one, g) in enumerate(zip(parent, grad, strict=True)):
            if one is not None and g is not None:
                yield f"{name}[{i}]", one, g


def _dtype(grad: Any) -> torch.dtype | None:
    return grad.dtype if isinstance(grad, torch.Tensor) else None


def _gradient(grad: Any, title: str, came: torch.Tensor | None) -> str:
    """The first bad element of a gradient, how many there are, and what came in there."""
    if not isinstance(grad, torch.Tensor):
        return ""
    where, count = bad_elements(grad)
    if not where:
        return ""
    told = f"{at(title, where[0])} = {element(grad, where[0], grad.shape)}"
    if count > 1:
        told += f" ({count} of {grad.numel()} elements)"
    arrived = None if came is None else element(came, where[0], grad.shape)
    return told if arrived is None else f"{told} for an incoming one of {arrived}"


def inside(node: Node) -> list[Node]:
    """The calls that a step stands for, where it is one for many."""
    return sorted(flat(tuple(node.inside)), key=lambda n: n.serial) if isinstance(node, VmapNode) else []


def has_hooks(node: Node) -> bool:
    """Whether the user has put a hook where it can change the gradient that comes to ``node``."""
    extras = node.extras
    if extras is not None and (extras.hooks or extras.prehooks or extras.output_hooks):
        return True
    tensor = node.variable if isinstance(node, Leaf) and node.adopted else None
    return bool(getattr(tensor, "_backward_hooks", None))


def hooked(node: Node) -> str:
    """What a hook is on, in words: an op, or the module that torch's own hooks on a Function of its own stand for."""
    modules = [type(hooks.module).__name__ for hooks in _modules_hooked(node)]
    return f"the module {modules[0]}" if modules else node.op


def _modules_hooked(node: Node) -> list[BackwardHook]:
    """The backward hooks of modules whose part at this node they are."""
    if node.extras is None:
        return []
    parts = [*(node.extras.prehooks or {}).values(), *node.extras.post_hooks.values()]
    cells = [cell.cell_contents for part in parts for cell in getattr(part, "__closure__", None) or ()]
    return [content for content in cells if isinstance(content, BackwardHook)]


def hooks_told(node: Node) -> str:
    """``by the hook at train.py:12``: where the hooks at a node are written; empty where they are no functions of the user's."""
    extras, found = node.extras, []
    if extras is not None:
        groups = (extras.hooks, extras.prehooks, extras.post_hooks, *(extras.output_hooks or {}).values())
        found = [hook for group in groups for hook in (group or {}).values()]
    if isinstance(node, Leaf):
        found += native_hooks(node, "_backward_hooks")
    found += [hook for module in _modules_hooked(node) for hook in (*module.user_pre_hooks, *module.user_hooks)]
    users = [hook for hook in found if str(getattr(hook, "__module__", "")).partition(".")[0] != "torch"]
    codes = [code for hook in users if (code := getattr(hook, "__code__", None)) is not None]
    places = [f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}" for code in codes]
    return f"by the hook at {', '.join(dict.fromkeys(places))}" if places else ""
