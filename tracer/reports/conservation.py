"""``conservation``: where the sum of value times gradient that comes to a call is not what goes on to its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.sites import Site
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import NotNotedError, OverwrittenError, UnrecordedError
from tracer.graph import Graph, backward_order
from tracer.node import Bridge, CallNode, Leaf, Node, flat
from tracer.reports.report import Report, Row, calls
from tracer.reports.steps import Step, input_names, steps
from tracer.reports.subjects import check_graph, check_loss

#: As whose parameters torch's own ops take their arguments of these names.
_PARAMETERS = frozenset({"weight", "bias"})


@dataclass(frozen=True)
class Flow(Row):
    """The flow through one call."""

    op: str
    #: ``come - gone``: what stays in the call, or, below zero, what it adds.
    leak: float
    #: The sum of value times gradient over the results, and over the inputs that are no parameters.
    come: float
    gone: float
    site: Site | None


def conservation(loss: torch.Tensor, graph: Graph) -> Report[Flow]:
    """The flow, sum(value * gradient), that comes to every call of ``loss`` and that goes on to its inputs; the largest leak first.

    A gradient, or the relevance that replaced rules pass on in its place, is conserved where both are the same. A linear layer without
    bias conserves gradient times input, as do relu and sums; a bias keeps ``bias * gradient``, and a product of two activations gives
    twice what it got. Parameters count for nothing: leaves that are an ``nn.Parameter`` or that an op takes as its ``weight`` or ``bias``,
    and what is made of these alone. Of complex tensors the real part of the inner product counts.

    Only leaks beyond rounding are told in the verdict; ``rows`` has every call. Needs the values: raises ``NotNotedError`` where the
    forward pass was not recorded inside ``tracer.Graph(values=True)``, and ``UnrecordedError`` where no input
    requires grad, and for a loss that no recorded call has made.
    """
    check_loss("conservation", loss, native=False)
    check_graph("conservation", graph)
    order = backward_order([loss._node])  # type: ignore[attr-defined]
    flowing = _flowing(order)
    if not flowing:
        raise UnrecordedError(
            "conservation() follows the flow from the loss to the inputs of the network, and none of them requires grad: all leaves are "
            "parameters. Call requires_grad_() on the input before the forward pass."
        )
    values = _Values(order, graph)
    rows, leaks = [], []
    for step in steps(loss):
        if isinstance(step.node, CallNode) and any(p in flowing for p in flat(step.node.parents)):
            row, rounding = _flow(step, values, flowing)
            rows.append(row)
            if not abs(row.leak) <= rounding:
                leaks.append(row)
    rows.sort(key=lambda row: (row.leak == row.leak, -abs(row.leak)))  # nan first
    total = sum(row.leak for row in leaks)
    if not leaks:
        return Report(f"conserved: all of {calls(len(rows))} pass on the flow that comes to them", rows)
    largest = rows[0]
    return Report(
        f"not conserved: {len(leaks)} of {calls(len(rows))} leak, {total:.4g} in sum; the largest leak is {largest.leak:.4g}, in "
        f"{largest.op}",
        rows,
        ["Leave out the bias, or replace the rule of the op by one that conserves what you follow (ops_registry.use)."],
    )


def _flow(step: Step, values: _Values, flowing: set[Node]) -> tuple[Flow, float]:
    """The flow through one call, and how far rounding may put it off."""
    come, gone = _Sum(), _Sum()
    come.add(values.result(step.node), step.grad)
    names = input_names(step.node)
    for name, parent, grad in zip(names, step.node.parents, step.inputs, strict=True):
        if grad is None:
            continue
        if type(parent) is not tuple:
            if parent in flowing:
                gone.add(values.argument(step.node, name, parent), grad)
            continue
        for i, (one, g) in enumerate(zip(parent, grad, strict=True)):
            if g is not None and one in flowing:
                gone.add(values.argument(step.node, name, one, i), g)
    rounding = max(come.precision, gone.precision) ** 0.5 * max(come.size, gone.size)
    return Flow(step.op, come.total - gone.total, come.total, gone.total, step.site), rounding


class _Values:
    """What the calls were given and returned. Of what was overwritten in place since, another call may have a copy: the one that wrote."""

    def __init__(self, order: Iterable[Node], graph: Graph) -> None:
        self.graph = graph
        #: By node: the calls that take its result, under which name, and where in a list.
        self.uses: dict[Node, list[tuple[Node, str, int | None]]] = {}
        for node in order:
            for name, parent in zip(input_names(node), node.parents, strict=True) if isinstance(node, CallNode) else ():
                for i, one in enumerate(parent if type(parent) is tuple else (parent,)):
                    self.uses.setdefault(one, []).append((node, name, i if type(parent) is tuple else None))

    def result(self, node: Node) -> Any:
        """What a call returned."""
        try:
            return self.graph.values_of(node)["result"]
        except OverwrittenError as error:
            return self._elsewhere(node, error)

    def argument(self, node: Node, name: str, parent: Node, position: int | None = None) -> Any:
        """An argument of a call, or the one at ``position`` in a list; ``parent`` is the node that made it."""
        try:
            value = self.graph.values_of(node)[name]
            return value if position is None else value[position]
        except OverwrittenError as error:
            return self._elsewhere(parent, error)

    def _elsewhere(self, made_by: Node, error: OverwrittenError) -> Any:
        for user, name, position in self.uses.get(made_by, ()):
            try:
                value = self.graph.values_of(user)[name]
            except (OverwrittenError, NotNotedError):
                continue
            return value if position is None else value[position]
        raise error


class _Sum:
    """A sum of values times gradients, of the sizes of its terms, and the coarsest precision among them."""

    def __init__(self) -> None:
        self.total = self.size = self.precision = 0.0

    def add(self, value: Any, grad: Any) -> None:
        """Add a tensor times its gradient; of several results, those with one."""
        if isinstance(grad, tuple):
            for v, g in zip(value, grad, strict=True):
                self.add(v, g)
            return
        if grad is None:
            return
        with DisableTorchFunctionSubclass(), torch.no_grad():
            self.precision = max(self.precision, torch.finfo(grad.dtype).eps)
            wide = torch.complex128 if grad.is_complex() or value.is_complex() else torch.float64
            value, grad = (t.to_dense() if t.layout is not torch.strided else t for t in (value, grad))
            terms = (value.detach().to(wide).conj() * grad.detach().to(wide)).real
            self.total += float(terms.sum())
            self.size += float(terms.abs().sum())


def _flowing(order: Iterable[Node]) -> set[Node]:
    """The nodes that the flow goes through: leaves that are no parameters, and all that depends on one."""
    nodes = list(order)
    named = {
        parent
        for node in nodes
        if isinstance(node, CallNode)
        for name, parent in zip(input_names(node), node.parents, strict=True)
        if name in _PARAMETERS and isinstance(parent, Leaf)
    }
    flowing: set[Node] = set()
    for node in reversed(nodes):
        if isinstance(node, Leaf):
            if node not in named and not isinstance(node.variable, torch.nn.Parameter):
                flowing.add(node)
        elif isinstance(node, Bridge) or any(parent in flowing for parent in flat(node.parents)):
            flowing.add(node)
    return flowing
