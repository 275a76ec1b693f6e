"""The way back: one sweep over the part of the graph that the roots reach.

For each node, newest first: take its gradient, run its rule, project each result onto its input, add, let go of what the node
kept. Leaves are filled when the sweep has come through, so that a failed one leaves every ``.grad`` as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch

from ops_registry.errors import RuleResultError
from ops_registry.projection import project
from ops_registry.rule import Step
from ops_registry.torch_private import DisableTorchFunctionSubclass, set_grad_enabled, storage_use_count
from tracer.errors import MissingRuleError, UnsupportedError
from tracer.graph import backward_order
from tracer.keeping import reattach, unpack
from tracer.naming import describe_node
from tracer.native import hand_over
from tracer.node import Bridge, Leaf, Node, Output, flat
from tracer.tensor import Tensor

_accumulating = threading.Lock()


class Sweep:
    """One backward pass, and the gradients on their way."""

    def __init__(self, *, keep_graph: bool, create_graph: bool) -> None:
        self.keep_graph = keep_graph
        self.create_graph = create_graph
        #: Gradients that have arrived at a node that was not visited yet (a list of them for a call with several results).
        self.grads: dict[Node, Any] = {}
        #: Nodes whose gradient is a buffer of the sweep's own, so that more can be added in place.
        self.owned: set[Node] = set()
        self.leaves: list[tuple[Leaf, torch.Tensor]] = []
        self.retained: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.bridged: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self, roots: Iterable[tuple[Node, torch.Tensor]], targets: set[Node] | None = None) -> dict[Node, torch.Tensor]:
        """Carry the gradients of ``roots`` back, and return those that reached ``targets``.

        ``targets`` None: the whole graph is swept, and leaves are to be filled. Otherwise only nodes that lead to a target are visited.
        """
        for node, grad in roots:
            self.add(node, grad)
        order = backward_order(list(self.grads))
        leading = None if targets is None else _leading_to(targets, order)
        found: dict[Node, torch.Tensor] = {}
        mode = torch.is_grad_enabled()
        set_grad_enabled(self.create_graph)
        try:
            self._visit(order, targets, leading, found)
        finally:
            set_grad_enabled(mode)
        return found

    def _visit(
        self, order: list[Node], targets: set[Node] | None, leading: set[Node] | None, found: dict[Node, torch.Tensor]
    ) -> None:
        grads = self.grads
        for node in order:
            grad = grads.pop(node, None)
            if grad is None or (leading is not None and node not in leading):
                continue
            if node.hooks:
                grad = _run_hooks(node, grad)
            if node.retain is not None:
                tensor = node.retain()
                if tensor is not None:
                    self.retained.append((tensor, grad))
            if targets is not None and node in targets:
                found[node] = grad
            kind = type(node)
            if kind is Node:
                if targets is None or leading is None or any(p in leading for p in flat(node.parents)):
                    self._through(node, grad, leading)
            elif kind is Output:
                self._gather_output(node, grad)
            elif kind is Leaf:
                if targets is None:
                    self._reach_leaf(node, grad)
            elif kind is Bridge:
                self.bridged.append((node.native, grad))

    def _through(self, node: Node, grad: Any, leading: set[Node] | None) -> None:
        """Run the rule of one call and pass its results on to the call's inputs."""
        variant = node.variant
        if not variant.steps:
            raise _missing(node)
        kept = unpack(node)
        if self.create_graph:
            kept = reattach(node, kept)
        if node.versions and not self.keep_graph:
            node.kept = None
        parents = node.parents
        passed: list[Any] | None = [None] * len(parents) if node.post_hooks else None
        for step in variant.steps:
            needs = step.needs
            if leading is not None:
                needs = tuple([p is not None and any(n in leading for n in flat((parents[p],))) for p in step.parents])
                if not any(needs):
                    continue
            try:
                results = step.call(grad, kept, needs)
            except Exception as error:
                _say_where(error, node)
                raise
            if not step.formula.joint:
                results = (results,)
            elif results is None:
                continue
            elif len(results) != len(step.parents):
                raise RuleResultError(
                    f"{_rule_of(node, step)} returned {len(results)} gradients for {len(step.parents)} inputs "
                    f"({', '.join(step.formula.wrt)}). Return one for each, None where nothing flows."
                )
            for result, position in zip(results, step.parents, strict=True):
                if result is None or position is None:
                    continue
                parent = parents[position]
                if type(parent) is tuple:
                    self._add_list(node, step, parent, result)
                    continue
                if type(result) is not torch.Tensor or self.create_graph:
                    _check_tensor(node, step, result)
                    with DisableTorchFunctionSubclass():
                        fits = result.shape == parent.shape and result.dtype == parent.dtype
                else:
                    fits = result.shape == parent.shape and result.dtype == parent.dtype
                if not fits and parent.shape is not None:
                    result = project(result, parent.shape, parent.dtype, lambda step=step: _rule_of(node, step))
                if passed is not None:
                    passed[position] = result
                self.add(parent, result)
        if passed is not None and node.post_hooks:
            for hook in list(node.post_hooks.values()):
                hook(tuple(passed), grad if isinstance(grad, tuple) else (grad,))

    def _add_list(self, node: Node, step: Step, parents: tuple[Any, ...], results: Any) -> None:
        """The gradients of a list of tensors."""
        if isinstance(results, torch.Tensor) or len(results) != len(parents):
            raise RuleResultError(
                f"{_rule_of(node, step)} returned {'one gradient' if isinstance(results, torch.Tensor) else len(results)} for a list of "
                f"{len(parents)} tensors. Return a list of as many gradients."
            )
        for parent, result in zip(parents, results, strict=True):
            if parent is not None and result is not None:
                _check_tensor(node, step, result)
                self.add(parent, project(result, parent.shape, parent.dtype, lambda: _rule_of(node, step)))

    def add(self, node: Node, grad: torch.Tensor) -> None:
        """Add ``grad`` to what has arrived at ``node``."""
        grads = self.grads
        before = grads.get(node)
        if before is None:
            grads[node] = grad
        elif node in self.owned:
            before.add_(grad)
        else:
            grads[node] = before + grad
            if not self.create_graph and before.layout is torch.strided:
                self.owned.add(node)

    def _gather_output(self, node: Output, grad: torch.Tensor) -> None:
        """Put the gradient of one of several results beside those of the others."""
        (call,) = node.parents
        gathered = self.grads.get(call)
        if gathered is None:
            gathered = (None,) * len(call.outputs)
        self.grads[call] = (*gathered[: node.index], grad, *gathered[node.index + 1 :])

    def _reach_leaf(self, leaf: Leaf, grad: torch.Tensor) -> None:
        tensor = leaf.variable
        if tensor is None:
            return
        if type(tensor) is not Tensor:  # adopted: torch's own hooks on it are the user's
            for hook in list((getattr(tensor, "_backward_hooks", None) or {}).values()):
                new = hook(grad)
                grad = grad if new is None else new
        native_hooks = getattr(tensor, "_post_accumulate_grad_hooks", None) if type(tensor) is not Tensor else None
        if leaf.post_hooks or native_hooks:
            # Such hooks step and drop the gradient to save memory: they cannot wait for the end of the sweep.
            self._accumulate(tensor, grad)
            for hook in [*(leaf.post_hooks or {}).values(), *(native_hooks or {}).values()]:
                hook(tensor)
        else:
            self.leaves.append((leaf, grad))

    def commit(self, inputs: Iterable[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
        """Fill ``.grad`` of the leaves reached, of tensors that retain it, and of ``inputs``; hand over to torch what arrived there."""
        leaves, self.leaves = self.leaves, []
        leaves.reverse()
        while leaves:
            leaf, grad = leaves.pop()
            tensor = leaf.variable
            if tensor is not None:
                self._accumulate(tensor, grad)
            del grad
        for tensor, grad in (*self.retained, *inputs):
            self._accumulate(tensor, grad)
        if self.bridged:
            hand_over(self.bridged, None)

    def _accumulate(self, tensor: torch.Tensor, grad: torch.Tensor) -> None:
        if self.create_graph:
            before = tensor.grad
            # A copy that is recorded: the buffer may be somebody else's, and stays part of the history.
            tensor.grad = grad.clone() if before is None else before + grad
            return
        with DisableTorchFunctionSubclass(), _accumulating, torch.no_grad():
            slot: Any = torch.Tensor.grad  # type: ignore[misc]
            before = slot.__get__(tensor)
            if before is None:
                slot.__set__(tensor, _own(grad, tensor))
            elif before.requires_grad or type(before) is Tensor:
                slot.__set__(tensor, before + grad)
            else:
                before.add_(grad)


def _own(grad: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``grad`` as a buffer that belongs to nobody else, laid out as torch lays out ``.grad``: like the tensor where that is dense."""
    if grad.layout is not torch.strided:
        return grad.clone()
    like_tensor = grad.stride() == tensor.stride()
    if storage_use_count(grad) == 1 and (like_tensor or (grad.is_contiguous() and not _dense(tensor))):
        return grad
    return torch.empty_like(tensor, requires_grad=False).copy_(grad) if _dense(tensor) else grad.clone(memory_format=torch.contiguous_format)


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or tensor.numel() == tensor.untyped_storage().nbytes() // tensor.element_size()


def _leading_to(targets: set[Node], order: list[Node]) -> set[Node]:
    """The targets, and the nodes of ``order`` from which a way leads to one."""
    leading = set(targets)
    for node in reversed(order):
        if node not in leading and any(p in leading for p in flat(node.parents)):
            leading.add(node)
    return leading


def _run_hooks(node: Node, grad: Any) -> Any:
    for hook in list((node.hooks or {}).values()):
        new = hook(grad)
        if new is None:
            continue
        if not isinstance(new, torch.Tensor) or new.shape != grad.shape:
            given = f"shape {tuple(new.shape)}" if isinstance(new, torch.Tensor) else type(new).__name__
            raise RuleResultError(
                f"a hook on {describe_node(node)} returned {given} in place of a gradient of shape {tuple(grad.shape)}"
            )
        grad = new
    return grad


def _check_tensor(node: Node, step: Step, result: Any) -> None:
    if not isinstance(result, torch.Tensor):
        raise RuleResultError(
            f"{_rule_of(node, step)} returned {type(result).__name__} as the gradient of {', '.join(step.formula.wrt)}. "
            f"Return a tensor, or None where nothing flows."
        )


def _rule_of(node: Node, step: Step) -> str:
    formula = step.formula
    name = getattr(formula.function, "__name__", "?")
    return f"the rule '{name}' ({formula.location}) of {describe_node(node)}"


def _say_where(error: Exception, node: Node) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"raised by the backward rule of {describe_node(node)}")


def _missing(node: Node) -> Exception:
    if not node.kept:
        return UnsupportedError(f"backward reached {describe_node(node)}, which was removed from its graph")
    qualified, arguments = node.kept
    line = f", called at {node.line}" if node.line else " (tracer.Graph(record_lines=True) would tell where it was called)"
    short = node.op.strip("_")
    return MissingRuleError(
        f"{qualified}({arguments}) has no backward rule{line}.\n"
        f"Write one:\n\n"
        f"    @ops_registry.backward({qualified})\n"
        f"    def {short}(grad, ...):   # name the arguments, or 'result', that the formula needs\n"
        f"        return ...\n\n"
        f"or take this derivative from torch's own autograd: with tracer.fallback(\"torch\"): ..."
    )
