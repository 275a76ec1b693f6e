"""The way back: one sweep over the part of the graph that the roots reach.

For each node, newest first: take its gradient, run its rule, project each result onto its input, add, let go of what the node
kept. Leaves are filled when the sweep has come through, so that a failed one leaves every ``.grad`` as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from ops_registry.errors import RuleResultError
from ops_registry.projection import project
from ops_registry.rule import Step, make_needs
from ops_registry.torch_private import set_grad_enabled
from tracer.backprop.accumulate import Entry, accumulate, accumulate_recorded, plus
from tracer.backprop.bridge import hand_over
from tracer.backprop.hooks import run_hooks, run_post_hooks
from tracer.errors import MissingRuleError, UnsupportedError
from tracer.functions.function import FunctionNode
from tracer.graph import backward_order
from tracer.naming import describe_node
from tracer.node import Bridge, Leaf, Node, Output, flat, tensors_in
from tracer.recording.saved import reattach, release, unpack
from tracer.recording.saved_hooks import one_sweep
from tracer.tracked_tensor import Tensor, plain_alias

_PLAIN = torch.Tensor


class Sweep:
    """One backward pass, and the gradients on their way."""

    def __init__(self, *, keep_graph: bool, create_graph: bool) -> None:
        self.keep_graph = keep_graph
        self.create_graph = create_graph
        #: Gradients that have arrived at a node that was not visited yet (a list of them for a call with several results).
        self.grads: dict[Node, Any] = {}
        #: Nodes that a rule answered None for: as in torch their gradient is zero, not missing. No memory is spent on it on the way.
        self.zero: set[Node] = set()
        #: Nodes whose gradient is a buffer of the sweep's own, so that more can be added in place.
        self.owned: set[Node] = set()
        #: What reached a target.
        self.found: dict[Node, torch.Tensor] = {}
        #: Where the roots' gradients live.
        self.device: torch.device | None = None
        self.leaves: list[Entry] = []
        self.retained: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.bridged: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(
        self,
        roots: Iterable[tuple[Node, torch.Tensor]],
        targets: set[Node] | None = None,
        through_bridges: bool = False,
    ) -> dict[Node, torch.Tensor]:
        """Carry the gradients of ``roots`` back, and return those that reached ``targets``.

        ``targets`` None: the whole graph is swept, and leaves are to be filled. Otherwise only nodes that lead to a target are visited, or,
        with ``through_bridges``, to a place where the history goes on in torch's autograd.
        """
        for node, grad in roots:
            self.add(node, grad)
            self.device = grad.device
        order = backward_order(list(self.grads))
        leading = None if targets is None else _leading_to(targets, order, through_bridges)
        found = self.found
        mode = torch.is_grad_enabled()
        set_grad_enabled(self.create_graph)
        try:
            with one_sweep():
                self._visit(order, targets, leading, found)
        finally:
            set_grad_enabled(mode)
        return found

    def _visit(
        self, order: list[Node], targets: set[Node] | None, leading: set[Node] | None, found: dict[Node, torch.Tensor]
    ) -> None:
        grads = self.grads
        take = grads.pop
        # Nothing to record, to leave out or to report: most nodes of most sweeps, gone through in this loop for speed.
        plain = leading is None and not self.create_graph
        for node in order:
            grad = take(node, None)
            if grad is None:
                if node not in self.zero or (leading is not None and node not in leading):
                    continue
                grad = self._zero_at(node, targets)
                if grad is None:
                    continue
            if plain and node.extras is None and type(node) is Node:
                steps = node.plan.steps or self._missing(node)
                kept: Any = node.kept
                if node.saved:
                    for tensor, version in node.saved:
                        if tensor._version != version:
                            kept = unpack(node)  # packed by hooks; else it raises, with all that is to be said
                            break
                    if not self.keep_graph:
                        node.kept, node.saved = None, ()
                elif kept is None:
                    unpack(node)
                parents = node.parents
                try:
                    for step in steps:
                        result = step.call(grad, kept, step.needs)
                        if step.joint:
                            self._pass_all_on(node, step, result, None)
                            continue
                        parent = parents[step.parent]
                        if type(result) is not _PLAIN or type(parent) is tuple or parent in grads:
                            self._pass_on(node, step, step.parent, result, None)
                        elif result.shape == parent.shape and result.dtype is parent.dtype:
                            grads[parent] = result
                        else:
                            grads[parent] = _project(node, step, parent, result)
                        result = None
                except Exception as error:
                    _say_where(error, node)
                    raise
                grad = kept = None  # let the buffers go before the next rule allocates its own
                continue
            if leading is not None and node not in leading:
                continue
            if node.extras is not None:
                grad = run_hooks(node, node.extras, grad)
                retaining = None if node.extras.retain is None else node.extras.retain()
                if retaining is not None:
                    self.retained.append((retaining, grad))
            if targets is not None and node in targets:
                found[node] = grad
            if type(node) is Node or isinstance(node, FunctionNode):
                if leading is None or any(p in leading for p in flat(node.parents)):
                    self._through(node, grad, leading)
            elif isinstance(node, Output):
                self._gather_output(node, grad)
            elif isinstance(node, Leaf):
                if targets is None:
                    self._reach_leaf(node, grad)
            elif isinstance(node, Bridge):
                self._reach_bridge(node, grad)
            grad = None

    def _zero_at(self, node: Node, targets: set[Node] | None) -> torch.Tensor | None:
        """The zero gradient of a node that no other gradient has reached: a tensor where someone will look at it, else passed on unseen."""
        if isinstance(node, FunctionNode):
            # Its answer to a gradient of zero need not be zero: its backward is run.
            return (None,) * len(node.results)  # type: ignore[return-value]
        if type(node) is Leaf:
            tensor = node.variable
            return None if tensor is None else torch.zeros_like(plain_alias(tensor), requires_grad=False)
        seen = node.extras is not None and (node.extras.hooks or node.extras.retain is not None)
        if node.shape is not None and (seen or type(node) is Bridge or (targets is not None and node in targets)):
            return torch.zeros(node.shape, dtype=node.dtype, device=self.device)
        self.zero.update(flat(node.parents))
        if not self.keep_graph:
            release(node)
        return None

    def _through(self, node: Node, grad: Any, leading: set[Node] | None) -> None:
        """Run the rule of one call and pass its results on to the call's inputs."""
        #: By position among the parents: what is to be passed on, held back while hooks look at it.
        passed: dict[int, Any] | None = {} if node.extras is not None and node.extras.post_hooks else None
        if isinstance(node, FunctionNode):
            self._through_function(node, grad, passed)
        else:
            self._through_rule(node, grad, leading, passed)
        if passed is not None:
            run_post_hooks(node, passed, grad)
            for position, result in passed.items():
                self._deliver(node.parents[position], result)

    def _through_function(self, node: FunctionNode, grad: Any, passed: dict[int, Any] | None) -> None:
        """The user's own ``backward``. As in torch, what it leaves out (None) is no gradient, not one of zero."""
        try:
            results = node.differentiate(grad, self.create_graph, self._on_their_way)
        except Exception as error:
            _say_where(error, node)
            raise
        if not self.keep_graph:
            release(node)
        (step,) = node.plan.steps
        for position, result in enumerate(results):
            if result is not None:
                plain = plain_alias(result) if type(result) is Tensor and not self.create_graph else result
                self._pass_on(node, step, position, plain, passed)

    def _on_their_way(self) -> list[torch.Tensor]:
        """All gradients that the sweep holds."""
        held = tensors_in(list(self.grads.values()))
        held += (
            [g for _, buffer in self.leaves for g in buffer]
            + [g for _, g in self.retained]
            + [g for _, g in self.bridged]
        )
        return [*held, *self.found.values()]

    def _through_rule(self, node: Node, grad: Any, leading: set[Node] | None, passed: dict[int, Any] | None) -> None:
        steps = node.plan.steps or self._missing(node)
        kept = unpack(node)
        if self.create_graph:
            kept = reattach(node, kept)
        if not self.keep_graph:
            release(node)
        parents = node.parents
        for step in steps:
            needs = step.needs
            if leading is not None:
                needs = make_needs(
                    step.formula.wrt,
                    [p is not None and any(n in leading for n in flat((parents[p],))) for p in step.parents],
                )
                if not any(needs):
                    continue
            try:
                results = step.call(grad, kept, needs)
            except Exception as error:
                _say_where(error, node)
                raise
            if step.joint:
                self._pass_all_on(node, step, results, passed)
            else:
                self._pass_on(node, step, step.parent, results, passed)

    def _missing(self, node: Node) -> NoReturn:
        raise _missing(node)

    def _pass_all_on(self, node: Node, step: Step, results: Any, passed: dict[int, Any] | None) -> None:
        """``_pass_on`` for each result of a joint formula."""
        if results is None:
            results = (None,) * len(step.parents)
        if len(results) != len(step.parents):
            raise RuleResultError(
                f"{_rule_of(node, step)} returned {len(results)} gradients for {len(step.parents)} inputs "
                f"({', '.join(step.formula.wrt)}). Return one for each, None for a gradient of zero."
            )
        for result, position in zip(results, step.parents, strict=True):
            if position is not None:
                self._pass_on(node, step, position, result, passed)

    def _pass_on(self, node: Node, step: Step, position: int, result: Any, passed: dict[int, Any] | None) -> None:
        """Project what a rule returned onto the input at ``position`` and add it to what has arrived there."""
        parent = node.parents[position]
        if type(result) is torch.Tensor and type(parent) is not tuple:
            # Plain on both sides: no interception to avoid, and mostly nothing to project.
            if result.shape != parent.shape or result.dtype is not parent.dtype:
                result = _project(node, step, parent, result)
        elif type(parent) is tuple and result is not None:
            result = _project_list(node, step, parent, result)
        elif result is not None:
            _check_tensor(node, step, result)
            result = _project(node, step, parent, result)
        if passed is None:
            self._deliver(parent, result)
        else:
            passed[position] = result

    def _deliver(self, parent: Any, result: Any) -> None:
        """Add a projected gradient to what has arrived at ``parent``; None is one of zero."""
        if result is None:
            self.zero.update(flat((parent,)))
        elif type(parent) is tuple:
            for p, r in zip(parent, result, strict=True):
                if p is not None:
                    self._deliver(p, r)
        elif parent in self.grads:
            self.add(parent, result)
        else:
            self.grads[parent] = result

    def add(self, node: Node, grad: torch.Tensor) -> None:
        """Add ``grad`` to what has arrived at ``node``."""
        grads = self.grads
        before = grads.get(node)
        if before is None:
            grads[node] = grad
        elif node in self.owned:
            before.add_(grad)
        else:
            total = grads[node] = plus(before, grad)
            if not self.create_graph and total.layout is torch.strided:
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
        post_hooks = [*(leaf.extras.post_hooks.values() if leaf.extras else ()), *(native_hooks or {}).values()]
        if post_hooks:
            # Such hooks step and drop the gradient to save memory: they cannot wait for the end of the sweep.
            self._fill([(tensor, [grad])])
            for hook in post_hooks:
                hook(tensor)
        else:
            self.leaves.append((tensor, [grad]))

    def _reach_bridge(self, bridge: Bridge, grad: torch.Tensor) -> None:
        if self.create_graph:
            raise UnsupportedError(
                f"create_graph=True reached a tensor of shape {tuple(bridge.native.shape)} with a history in torch's own autograd, where "
                f"the backward pass cannot be recorded. Track its leaves before they are used (tracer.track, nn.track)."
            )
        self.bridged.append((bridge.native, grad))

    def commit(self, inputs: Iterable[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
        """Fill ``.grad`` of the leaves reached, of tensors that retain it, and of ``inputs``; hand over to torch what arrived there."""
        retaining = {id(tensor) for tensor, _ in self.retained}
        self._fill(self.leaves)
        self._fill([(t, [g]) for t, g in self.retained])
        self._fill([(t, [g]) for t, g in inputs if id(t) not in retaining])
        if self.bridged:
            hand_over(self.bridged, None)

    def _fill(self, entries: list[Entry]) -> None:
        if entries:
            (accumulate_recorded if self.create_graph else accumulate)(entries)


def _leading_to(targets: set[Node], order: list[Node], through_bridges: bool) -> set[Node]:
    """The targets, and the nodes of ``order`` from which a way leads to one (or to a bridge, where that counts)."""
    leading = set(targets)
    for node in reversed(order):
        if node in leading:
            continue
        if (through_bridges and type(node) is Bridge) or any(p in leading for p in flat(node.parents)):
            leading.add(node)
    return leading


def _project(node: Node, step: Step, parent: Node, result: torch.Tensor) -> torch.Tensor:
    if parent.shape is None or parent.dtype is None:  # a call without a rule: the sweep ends there with an error
        return result
    return project(result, parent.shape, parent.dtype, lambda: _rule_of(node, step))


def _project_list(node: Node, step: Step, parents: tuple[Any, ...], results: Any) -> list[Any]:
    """The gradients of a list of tensors."""
    if isinstance(results, torch.Tensor) or len(results) != len(parents):
        raise RuleResultError(
            f"{_rule_of(node, step)} returned {'one gradient' if isinstance(results, torch.Tensor) else len(results)} for a list of "
            f"{len(parents)} tensors. Return a list of as many gradients."
        )
    projected = []
    for parent, result in zip(parents, results, strict=True):
        if parent is not None and result is not None:
            _check_tensor(node, step, result)
            result = _project(node, step, parent, result)
        projected.append(result)
    return projected


def _check_tensor(node: Node, step: Step, result: Any) -> None:
    if not isinstance(result, torch.Tensor):
        raise RuleResultError(
            f"{_rule_of(node, step)} returned {type(result).__name__} as the gradient of {', '.join(step.formula.wrt)}. "
            f"Return a tensor, or None for a gradient of zero."
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
    line = (
        f", called at {node.line}" if node.line else " (tracer.Graph(record_lines=True) would tell where it was called)"
    )
    short = node.op.strip("_")
    return MissingRuleError(
        f"{qualified}({arguments}) has no backward rule{line}.\n"
        f"Write one:\n\n"
        f"    @ops_registry.backward({qualified})\n"
        f"    def {short}(grad, ...):   # name the arguments, or 'result', that the formula needs\n"
        f"        return ...\n\n"
        f'or take this derivative from torch\'s own autograd: with tracer.fallback("torch"): ...'
    )
