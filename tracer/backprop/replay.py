"""``replay``: the gradients of a forward pass that has been recorded, by other rules, as often as wanted.

Nothing in the graph is changed. The sweep looks up a call's plan beside the node, and takes what the other rule asks for from what the node
saved for its own, or from the values that a graph kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from ops_registry.formula import KIND
from ops_registry.matching import Where
from ops_registry.rule import META, SITE, CallPlan
from ops_registry.scopes import Replacements, Substitution
from ops_registry.sites import Site
from tracer.backprop.api import Places, Weights, as_tuple, gradients_of, nodes_of_inputs, roots_of
from tracer.backprop.order import nodes_needed_for
from tracer.backprop.sweep import Sweep
from tracer.errors import GradientArgumentError, NotNotedError, UnsupportedError, UnusedInputError
from tracer.graph import backward_order
from tracer.naming import describe_node
from tracer.node import CallNode, Node, OpaqueNode
from tracer.recording.saved import saved_values


def replay(
    outputs: Places,
    inputs: Places,
    rules: Replacements | None = None,
    where: Where | None = None,
    grad_outputs: Weights = None,
) -> tuple[torch.Tensor, ...]:
    """The gradients of ``outputs`` with respect to ``inputs``, as ``torch.autograd.grad`` gives them, by other rules for some ops.

    ``rules`` and ``where`` are as for ``ops_registry.use``: the rules take the place of those that the calls were recorded under, which
    ``default`` means. No ``.grad`` is touched, no node is changed, and the graph is retained, so that it can be asked again.

    What a rule asks for has to be there: record the forward pass inside ``tracer.Graph(values=True)``, which keeps all arguments and
    results, and with ``sites=True`` for ``where`` and for rules that name ``site``. Raises ``NotNotedError`` where it is not,
    ``OverwrittenError`` where it has been written to in place since, ``UnusedRuleError`` where no rule was applied, ``UnusedInputError``
    for an input that the outputs do not depend on, ``RuleError`` for a function whose parts were recorded in its place.
    """
    wanted = as_tuple(inputs)
    if not wanted:
        raise GradientArgumentError("replay() needs at least one input")
    roots = roots_of(as_tuple(outputs), grad_outputs, False)
    nodes = nodes_of_inputs(wanted)
    plans = {} if rules is None else other_plans(Substitution(rules, where), [node for node, _ in roots], set(nodes))
    sweep = Replay(plans)
    with sweep:
        found = gradients_of(sweep, roots, wanted, nodes)
    unused = [i for i, gradient in enumerate(found) if gradient is None]
    if unused:
        raise UnusedInputError(f"input {unused[0]} of replay() was not used to compute the outputs. Leave it out.")
    return tuple([gradient for gradient in found if gradient is not None])


def other_plans(rules: Substitution, roots: list[Node], targets: set[Node]) -> dict[Node, CallPlan]:
    """The plans of those calls on the way to the targets that another rule holds for."""
    order = backward_order(roots)
    needed = nodes_needed_for(targets, order, through_bridges=True)
    plans: dict[Node, CallPlan] = {}
    counts: Counter[str] = Counter()
    for node in order:
        if node not in needed:
            continue
        if isinstance(node, CallNode):
            counts[node.op] += 1
            if rules.covers(node.op):
                plan = rules.plan_for(node.plan, _site(node) if rules.scoped else node.site)
                if plan is not None:
                    plans[node] = plan
        elif isinstance(node, OpaqueNode):
            _refuse_inside(node, rules)
    rules.check(counts)
    return plans


def _site(node: CallNode) -> Site:
    if node.site is None:
        raise NotNotedError(
            f"replay(where=...) was asked about {node.op}, a call whose site nobody has noted: record the forward pass inside "
            f"tracer.Graph(sites=True, values=True)"
        )
    site = node.site
    if node.values is not None:
        site.args = node.values.bound
    return site


def _refuse_inside(node: OpaqueNode, rules: Substitution) -> None:
    for inner in node.inside:
        if isinstance(inner, CallNode) and rules.covers(inner.op):
            raise UnsupportedError(
                f"replay() was given a rule for {inner.op}, of which a call was recorded inside torch.vmap: there no rule can be "
                f"replaced afterwards. Run the forward pass inside ops_registry.use."
            )


class Replay(Sweep):
    """A sweep under other plans for some nodes."""

    #: The fast lane knows a node's own plan only.
    fast = False

    def __init__(self, plans: Mapping[Node, CallPlan]) -> None:
        super().__init__(keep_graph=True, create_graph=False)
        self._plans = plans

    def _through_rule(self, node: CallNode, grad: Any, grad_inputs: dict[int, Any] | None) -> None:
        plan = self._plans.get(node, node.plan)
        if plan is node.plan and (node.saved is not None or node.values is None):
            super()._through_rule(node, grad, grad_inputs)
        else:
            self._run_steps(node, plan, _gather(node, plan), grad, grad_inputs)


def _gather(node: CallNode, plan: CallPlan) -> tuple[Any, ...]:
    """What ``plan`` saves of a call: what the call saved for its own rule, the rest from the values kept of it."""
    saved = {} if node.saved is None else dict(zip(node.saved_names, saved_values(node), strict=True))
    return tuple([saved[name] if name in saved else _value(node, plan, name, saved) for name in plan.saved_names])


def _value(node: CallNode, plan: CallPlan, name: str, saved: Mapping[str, Any]) -> Any:
    if name == SITE:
        if node.site is not None:
            return node.site
        raise NotNotedError(
            f"the rule for {node.op} asks for 'site', which nobody has noted: record the forward pass inside tracer.Graph(sites=True)"
        )
    values, signature = node.values, plan.rule.signature
    if values is not None:
        if name in signature.outputs:
            return values["result"][signature.outputs.index(name)]
        if name in values:
            return values[name]
    found = _property(node, plan, name, saved)
    if found is not None:
        return found
    raise NotNotedError(
        f"replay(): the rule for {describe_node(node)} asks for '{name}', which the call did not save for its own rule. "
        + (
            "Record the forward pass inside tracer.Graph(values=True): it keeps all arguments and results."
            if values is None
            else "It is no argument and no result: only the op's own rule has the by-products of its forward."
        )
    )


def _kind(node: CallNode, plan: CallPlan, name: str) -> Any:
    """Shape and dtype of an input, a list of them for a list: what its nodes know."""
    parent = _parent_of(node, plan, name)
    if parent is None:
        return None
    return [_of(p) for p in parent] if type(parent) is tuple else _of(parent)


def _parent_of(node: CallNode, plan: CallPlan, name: str) -> Any:
    """The node of an input, a tuple of them for a list; None for an argument that wants no gradient."""
    for step in plan.steps:
        for covered, position in zip(step.formula.wrt, step.parents, strict=True):
            if covered == name and position is not None:
                return node.parents[position]
    return None


def _of(node: Node | None) -> tuple[Any, Any]:
    return (torch.Size(()), torch.get_default_dtype()) if node is None else (node.shape, node.dtype)


def _property(node: CallNode, plan: CallPlan, name: str, saved: Mapping[str, Any]) -> Any:
    """``input_shape`` and its like, of a value that somebody has kept, or of the input's node; None where ``name`` is no such thing."""
    base, _, which = name.rpartition("_")
    if which == KIND:
        return _kind(node, plan, base)
    if which not in META:
        return None
    rule, values = plan.rule, node.values
    if values is not None:  # it may have been written over, which changes none of its properties
        return rule.gatherer((name,))(values.bound, values.result, {})[0]
    if base in saved:
        bound = tuple([saved.get(argument) for argument in rule.signature.names])
        return rule.gatherer((name,))(bound, saved.get("result"), {})[0]
    return getattr(_parent_of(node, plan, base), which, None) if which in ("shape", "dtype") else None
