"""The way back: one sweep over the part of the graph that the roots reach, newest node first.

Of each node:

1. gradient: take the complete gradient of its result, and show it to hooks;
2. saved tensors: check them, and let go of them;
3. rule: run its formulas;
4. projection: bring each gradient onto its input;
5. accumulation: add it to what has arrived there.

Leaves are filled when the sweep has come through, so that a failed one leaves every ``.grad`` as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, cast

import torch

from ops_registry.registry import active
from ops_registry.rule import CallPlan, Step
from ops_registry.scopes import without_blocks
from ops_registry.torch_private import DisableTorchFunctionSubclass, count_dispatch_modes, set_grad_enabled
from tracer import anomaly
from tracer.backprop.accumulate import Entry, accumulate, accumulate_recorded, add_up, plus
from tracer.backprop.bridge import backward_into_torch, not_recordable
from tracer.backprop.hooks import (
    native_hooks,
    run_hooks,
    run_post_hooks,
    run_prehooks,
    tell_results_without_gradient,
)
from tracer.backprop.order import hooked_leaves_early, nodes_needed_for, where_its_hooks_run
from tracer.backprop.progress import Taker, begin, end, in_flight, next_task
from tracer.backprop.projecting import all_of, check_tensor, project_list, project_onto
from tracer.backprop.takers import abandon, reach_leaf, settle
from tracer.earlier_uses import check_earlier_uses
from tracer.errors import FreedGraphError
from tracer.graph import backward_order
from tracer.naming import describe_node, say_where
from tracer.node import Bridge, CallNode, Extras, Leaf, Node, OpaqueNode, Output, flat
from tracer.recording.levels import levels
from tracer.recording.saved import reattach, release, saved_values
from tracer.tracked_tensor import Tensor, plain_alias

_PLAIN = torch.Tensor
_CALLS = (CallNode, OpaqueNode)


class Sweep:
    """One backward pass, and the gradients on their way. Inside ``with sweep:`` hooks can ask about it and queue callbacks."""

    #: Whether the common node may be visited in the fast lane; off where a test holds the two lanes side by side.
    fast = True
    #: Whether what each call passes on comes through ``_hand_on``, where a subclass looks at it. In the general lane alone.
    watched = False

    def __init__(self, *, keep_graph: bool, create_graph: bool) -> None:
        self.keep_graph = keep_graph
        self.create_graph = create_graph
        #: Inside a level of torch.vmap one gradient may stand for a batch, and another not: nothing is added in place there.
        self.in_level = bool(levels.open)
        #: Gradients that have arrived at a node that was not visited yet (a list of them for a call with several results).
        self.grads: dict[Node, Any] = {}
        #: Nodes that a rule answered None for: as in torch their gradient is zero, not missing. No memory is spent on it on the way.
        self.zero: set[Node] = set()
        #: Nodes whose gradient is a buffer of the sweep's own, so that more can be added in place.
        self.owned: set[Node] = set()
        #: Where gradients are asked for; None where leaves are to be filled.
        self.targets: set[Node] | None = None
        #: The nodes that lead to a target; None where all are visited.
        self.needed: set[Node] | None = None
        #: Whether a node that is visited can have parents that are not.
        self.narrow = False
        #: Anomaly mode is on: the general lane looks at what each node passes on.
        self.anomaly = torch.is_anomaly_enabled()
        #: Whether leaves among the targets are to be filled, and not found.
        self.fill_targets = False
        #: What reached a target.
        self.found: dict[Node, torch.Tensor] = {}
        #: Where the roots' gradients live.
        self.device: torch.device | None = None
        self.leaves: list[Entry] = []
        self.retained: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.bridged: list[tuple[Bridge, torch.Tensor]] = []
        # What hooks ask for (``tracer/backprop/progress.py``); the fast lane notes no node: nobody can ask there.
        self.task = next_task()
        self.native_task = -1
        self.node: Node | None = None
        self.order: list[Node] = []
        self.callbacks: list[Callable[[], Any]] = []
        self.takers: list[Taker] = []

    def __enter__(self) -> Sweep:
        begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                abandon(self)
            while kind is None and self.callbacks:  # one may queue another
                self.callbacks.pop(0)()
        finally:
            end()

    def will_visit(self, node: Node) -> bool:
        """Whether the sweep comes to ``node``, or has been there."""
        return node in self.order

    def run(
        self,
        roots: Iterable[tuple[Node, torch.Tensor]],
        targets: set[Node] | None = None,
        through_bridges: bool = False,
        order: list[Node] | None = None,
    ) -> dict[Node, torch.Tensor]:
        """Carry the gradients of ``roots`` back, and return those that reached ``targets``.

        ``targets`` None: the whole graph is swept, and leaves are to be filled. Otherwise only nodes that lead to a target are visited, or,
        with ``through_bridges``, to a place where the history goes on in torch's autograd. ``order``: that of the roots, where it is known.
        """
        self._begin_at(roots)
        order = backward_order(list(self.grads)) if order is None else order
        self.targets = targets
        if targets is not None:
            self.needed = needed = nodes_needed_for(targets, order, through_bridges)
            self.narrow = not needed.issuperset(order)
            order = [node for node in order if node in needed] if self.narrow else order
        self.order = order = hooked_leaves_early(order)
        self._visit_all(order)
        return self.found

    def _begin_at(self, roots: Iterable[tuple[Node, torch.Tensor]]) -> None:
        for node, grad in roots:
            self._add(node, grad)
            self.device = grad.device

    def run_inside(
        self, roots: Iterable[tuple[Node, torch.Tensor]], inside: list[Node], limits: list[Node]
    ) -> dict[Node, torch.Tensor]:
        """Carry the gradients of ``roots`` back through the nodes ``inside`` (newest first), and return those that reached ``limits``."""
        self._begin_at(roots)
        self.targets = set(limits)
        self.needed = {*inside, *limits}  # and all their parents
        self.order = inside
        self._visit_all(inside)
        for node in limits:
            grad = self.grads.pop(node, None)
            if grad is None and node in self.zero and node.shape is not None:
                grad = torch.zeros(node.shape, dtype=node.dtype, device=self.device)
            if grad is not None:
                self.found[node] = grad
        return self.found

    def _visit_all(self, order: list[Node]) -> None:
        mode, table = torch.is_grad_enabled(), active.table
        set_grad_enabled(self.create_graph)
        if self.create_graph:  # what formulas call is no call of the user's, for which ``use`` blocks are
            active.table = without_blocks(table)
        try:
            self._visit(order)
        finally:
            active.table = table
            set_grad_enabled(mode)
            self.order = []

    def _visit(self, order: list[Node]) -> None:  # noqa: C901, PLR0912, PLR0915
        grads, zero, owned = self.grads, self.zero, self.owned
        take = grads.pop
        keep_graph = self.keep_graph
        # A dispatch mode is user code that sees every call, and may ask for the node.
        fast = self.fast and not (self.anomaly or count_dispatch_modes())
        #: Where the backward pass is recorded, rules return tracked tensors.
        recorded, expected = self.create_graph, Tensor if self.create_graph else _PLAIN
        #: Where only some nodes are visited: those of them where no gradient is asked for.
        on_the_way = None if self.needed is None or self.targets is None else self.needed - self.targets
        narrow, filling = self.narrow, fast and self.targets is None
        common = not (narrow or recorded)
        tensor: Any
        for node in order:
            # Fast lane: inlined copy of ``_visit_node`` for a call of the common kind without hooks.
            # Without it a step of small ops takes 9 % longer (as in `intercept`; `benchmarks/lanes.py`, 2026-11).
            if fast and type(node) is CallNode and node.extras is None and (on_the_way is None or node in on_the_way):
                # 1 gradient
                grad = take(node, None)
                if grad is None:
                    if node in zero:
                        self._pass_zero_on(node)
                    continue
                if type(grad) is list:
                    grad = tuple(grad)
                # 2 saved tensors
                saved: Any = node.saved
                if node.saved_versions:
                    for tensor, version in node.saved_versions:
                        if tensor._version != version:
                            saved_values(node)  # raises, with all that is to be said
                    if not keep_graph:
                        node.saved, node.saved_versions = None, ()
                elif saved is None:
                    saved_values(node)
                parents, steps = node.parents, node.plan.steps
                if not common:
                    if narrow:
                        steps = self._steps(node, node.plan)
                    if recorded:
                        saved = reattach(node, saved)
                try:
                    for step in steps:
                        # 3 rule
                        result = step.call(grad, saved, step.needs)
                        if step.joint:
                            self._pass_all_on(node, step, result, None)
                            continue
                        parent = parents[step.parent]
                        if type(result) is not expected or type(parent) is tuple:
                            self._pass_on(node, step, step.parent, result, None)
                            continue
                        # 4 projection
                        if parent.shape != result.shape or result.dtype is not parent.dtype:
                            result = project_onto(node, step, parent, result)
                        # 5 accumulation
                        if parent not in grads:
                            grads[parent] = result
                        elif parent in owned:
                            grads[parent].add_(result)
                        else:
                            self._add(parent, result)
                        result = None
                except Exception as error:
                    say_where(error, node)
                    raise
                grad = saved = tensor = None  # let the buffers go before the next rule allocates its own
            elif filling and type(node) is Leaf and node in grads and node.extras is None and not node.adopted:
                if (variable := node.variable) is not None:
                    self.leaves.append((variable, [take(node)]))  # the one reference, as in ``_visit_node``
            elif filling and type(node) is Output and node in grads and node.extras is None:
                self._gather_output(node, take(node))
            else:
                self._visit_node(node)

    def _visit_node(self, node: Node) -> None:
        """The general lane: what a sweep does with any node."""
        # 1 gradient
        grad: Any = self.grads.pop(node, None)
        grad = arrived = cast(Any, tuple(grad) if type(grad) is list else grad)
        if grad is None and node in self.zero:
            grad = arrived = self._zero_at(node)
            if grad is None:
                return
        if grad is None and isinstance(node, Output):
            return  # hooks on it hear of that when the call is visited
        self.node, extras = node, node.extras
        grad = grad if extras is None else self._show_to_hooks(node, extras, grad)
        if isinstance(node, Leaf) and node.adopted and grad is not None:
            node = where_its_hooks_run(node, self.order)
        if isinstance(node, Leaf):
            grad = run_hooks(node, native_hooks(node, "_backward_hooks"), grad) if node.adopted else grad
            if self.targets is None or self.fill_targets:
                buffer, grad, arrived = [grad], None, None  # the one reference, so that .grad can be this very memory
                reach_leaf(self, node, buffer)
            elif grad is not None:
                self.found[node] = grad
            self.node = None
            return
        goes_on = self.needed is None or any(p in self.needed for p in flat(node.parents))
        if self.targets is not None and node in self.targets and grad is not None:
            # As in torch a gradient that goes on from here is found as it was before hooks, and one that ends here as they left it.
            self.found[node] = arrived if goes_on else grad
        if isinstance(node, _CALLS):
            if goes_on:
                self._through(node, grad if extras is None else run_prehooks(node, grad))
        elif grad is not None and isinstance(node, Output):
            self._gather_output(node, grad)
        elif grad is not None and isinstance(node, Bridge):
            self._reach_bridge(node, grad)
        self.node = None

    def _show_to_hooks(self, node: Node, extras: Extras, grad: Any) -> Any:
        """What the hooks on the result's tensor make of its gradient, which is the one that ``retain_grad`` keeps."""
        if extras.removed and grad is not None:
            raise FreedGraphError(f"backward reached {describe_node(node)}, which was removed from its graph")
        if extras.output_hooks:
            tell_results_without_gradient(node, grad)
        if extras.hooks:
            grad = run_hooks(node, extras.hooks.values(), grad)
        retaining = None if extras.retain is None else extras.retain()
        if retaining is not None and grad is not None:
            self.retained.append((retaining, grad))
        return grad

    def _through(self, node: CallNode | OpaqueNode, grad: Any) -> None:
        """Steps 2 to 5 of a call; where no gradient has come for it, only its hooks hear of that."""
        if self.anomaly:
            self._through_with_care(node, grad)
            return
        #: By position among the parents: what is to be passed on, held back while hooks look at it.
        hooked = node.extras is not None and bool(node.extras.post_hooks)
        grad_inputs: dict[int, Any] | None = {} if hooked or self.watched else None
        grad = self._gradients(node, grad, grad_inputs)
        if grad_inputs is not None:
            if hooked:
                run_post_hooks(node, grad_inputs, grad)
            self._hand_on(node, grad, grad_inputs)

    def _hand_on(self, node: CallNode | OpaqueNode, grad: Any, grad_inputs: dict[int, Any]) -> None:
        for position, result in grad_inputs.items():
            self._deliver(node.parents[position], result)

    def _gradients(self, node: CallNode | OpaqueNode, grad: Any, grad_inputs: dict[int, Any] | None) -> Any:
        """Let the rule, or the node itself, give the gradients of the inputs. Returns what hooks are shown as that of the result."""
        if grad is None:
            return None if node.outputs is None else (None,) * len(node.outputs)
        if isinstance(node, CallNode):
            self._through_rule(node, grad, grad_inputs)
        else:
            self._through_opaque(node, grad, grad_inputs)
        return grad

    def _through_with_care(self, node: CallNode | OpaqueNode, grad: Any) -> None:
        """Steps 2 to 5 in anomaly mode: nothing is passed on unseen."""
        grad_inputs: dict[int, Any] = {}
        outer, anomaly.visited.trace = anomaly.visited.trace, anomaly.trace_of(node)
        try:
            grad = self._gradients(node, grad, grad_inputs)
            if node.extras is not None and node.extras.post_hooks:
                run_post_hooks(node, grad_inputs, grad)
            anomaly.check(node, grad_inputs)
        except Exception:
            anomaly.show(node)
            raise
        finally:
            anomaly.visited.trace = outer
        self._hand_on(node, grad, grad_inputs)

    def _through_rule(self, node: CallNode, grad: Any, grad_inputs: dict[int, Any] | None) -> None:
        # 2 saved tensors
        saved = saved_values(node)
        if self.create_graph:
            saved = reattach(node, saved)
        if not self.keep_graph:
            release(node)
        self._run_steps(node, node.plan, saved, grad, grad_inputs)

    def _run_steps(
        self, node: CallNode, plan: CallPlan, saved: tuple[Any, ...], grad: Any, grad_inputs: dict[int, Any] | None
    ) -> None:
        for step in self._steps(node, plan):
            try:
                # 3 rule
                results = step.call(grad, saved, step.needs)
                # 4 projection, 5 accumulation
                if step.joint:
                    self._pass_all_on(node, step, results, grad_inputs)
                else:
                    self._pass_on(node, step, step.parent, results, grad_inputs)
            except Exception as error:
                say_where(error, node)
                raise

    def _steps(self, node: CallNode, plan: CallPlan) -> tuple[Step, ...]:
        """The formulas of ``node``, by its plan or another, that lead to a target."""
        needed = self.needed
        if not self.narrow or needed is None or needed.issuperset(node.parents):
            return plan.steps
        return plan.steps_for(
            tuple([not needed.isdisjoint(flat(p)) if type(p) is tuple else p in needed for p in node.parents])
        )

    def _through_opaque(self, node: OpaqueNode, grad: Any, grad_inputs: dict[int, Any] | None) -> None:
        try:
            results = node.grad_inputs(grad, self.create_graph, partial(in_flight, self))
        except Exception as error:
            say_where(error, node)
            raise
        if not self.keep_graph:
            release(node)
            node.let_go()
        for position, result in enumerate(results):
            if type(result) is Tensor and not self.create_graph:
                with DisableTorchFunctionSubclass():
                    result = plain_alias(result)
            if result is not None or node.none_is_zero:
                self._pass_on(node, None, position, result, grad_inputs)

    def _zero_at(self, node: Node) -> Any:
        """The zero gradient of a node that no other gradient has reached: a tensor where someone will look at it, else passed on unseen."""
        if isinstance(node, OpaqueNode) and node.zero_gradient is not None:
            return node.zero_gradient
        if isinstance(node, Leaf):
            tensor = node.variable
            with DisableTorchFunctionSubclass():
                return None if tensor is None else torch.zeros_like(plain_alias(tensor), requires_grad=False)
        extras = node.extras
        seen = extras is not None and (extras.hooks or extras.prehooks or extras.retain is not None)
        asked = self.targets is not None and node in self.targets
        if node.shape is not None and (seen or asked or type(node) is Bridge):
            return torch.zeros(node.shape, dtype=node.dtype, device=self.device)
        self._pass_zero_on(node)
        return None

    def _pass_zero_on(self, node: Node) -> None:
        self.zero.update(flat(node.parents))
        if not self.keep_graph:
            release(node)

    def _pass_all_on(self, node: CallNode, step: Step, results: Any, grad_inputs: dict[int, Any] | None) -> None:
        """``_pass_on`` for each result of a joint formula."""
        grads, parents, direct = self.grads, node.parents, grad_inputs is None
        for result, position in zip(all_of(node, step, results), step.parents, strict=True):
            if position is None:
                continue
            parent = parents[position]
            first = direct and type(result) is _PLAIN and type(parent) is not tuple and parent not in grads
            if first and parent.shape == result.shape and result.dtype is parent.dtype:
                grads[parent] = result
            else:
                self._pass_on(node, step, position, result, grad_inputs)

    def _pass_on(
        self, node: Node, step: Step | None, position: int, result: Any, grad_inputs: dict[int, Any] | None
    ) -> None:
        """Project a gradient onto the input at ``position`` and add it to what has arrived there. ``step`` is the formula that gave it."""
        parent = node.parents[position]
        if type(result) is _PLAIN and type(parent) is not tuple:
            # Plain on both sides: no interception to avoid, and mostly nothing to project.
            if parent.shape != result.shape or result.dtype is not parent.dtype:
                result = project_onto(node, step, parent, result)
        elif type(parent) is tuple and result is not None:
            result = project_list(node, step, parent, result)
        elif result is not None:
            check_tensor(node, step, result)
            with DisableTorchFunctionSubclass():
                fits = parent.shape == result.shape and result.dtype is parent.dtype
            if not fits:
                result = project_onto(node, step, parent, result)
        if grad_inputs is None:
            self._deliver(parent, result)
        else:
            grad_inputs[position] = result

    def _deliver(self, parent: Any, result: Any) -> None:
        """Add a projected gradient to what has arrived at ``parent``; None is one of zero."""
        if result is None:
            self.zero.update(flat((parent,)))
        elif type(parent) is tuple:
            for p, r in zip(parent, result, strict=True):
                if p is not None:
                    self._deliver(p, r)
        else:
            self._add(parent, result)

    def _add(self, node: Node, grad: torch.Tensor) -> None:
        """Add ``grad`` to what has arrived at ``node``."""
        grads = self.grads
        if grads.get(node) is None:
            grads[node] = grad
        elif node in self.owned:
            grads[node].add_(grad)
        elif self.create_graph or self.in_level:
            grads[node] = plus(grads[node], grad)
        elif (total := add_up(grads, node, grad)).layout is torch.strided and total.is_contiguous():
            self.owned.add(node)

    def _gather_output(self, node: Output, grad: torch.Tensor) -> None:
        """Put the gradient of one of several results beside those of the others."""
        (call,) = node.parents
        if call not in self.grads:
            self.grads[call] = [None] * len(call.outputs)
        self.grads[call][node.index] = grad

    def _reach_bridge(self, bridge: Bridge, grad: torch.Tensor) -> None:
        if self.create_graph:
            raise not_recordable(bridge.native)
        self.bridged.append((bridge, grad))

    def commit(self, inputs: Iterable[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
        """Hand over to torch what arrived there; fill ``.grad`` of the leaves reached, of tensors that retain it, and of ``inputs``.

        In this order: what runs in torch's pass may fail, or run a pass of ours inside it.
        """
        if self.bridged:
            check_earlier_uses(bridge.edge.node for bridge, _ in self.bridged)
            backward_into_torch(self.bridged, None, self.keep_graph)
        settle(self)
        self.fill(self.leaves)
        self.fill([(t, [g]) for t, g in self.retained])
        self.fill([(t, [g]) for t, g in inputs])

    def fill(self, entries: list[Entry]) -> None:
        """Add each gradient to the ``.grad`` of its tensor."""
        if entries:
            (accumulate_recorded if self.create_graph else accumulate)(entries)
