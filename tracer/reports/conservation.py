"""``conservation``: where the sum of value times gradient is not passed on unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ops_registry.sites import Site
from tracer.backprop.visits import Visit, visits
from tracer.graph import Graph
from tracer.node import CallNode, Leaf
from tracer.reports.report import Report, Row


@dataclass
class Flow(Row):
    """What came into one call from behind, and what it passed on."""

    columns: ClassVar[tuple[str, ...]] = ("op", "flow_in", "flow_out", "leak", "site")
    op: str
    #: The sum of its result times the gradient of its result.
    flow_in: float
    #: The sum of its inputs times their gradients, parameters left out.
    flow_out: float
    site: Site | None

    @property
    def leak(self) -> float:
        """What came in and did not go on."""
        return self.flow_in - self.flow_out


class Conservation(Report):
    """What ``conservation`` found: a row a call, the largest leak first."""

    columns = Flow.columns


def conservation(loss: torch.Tensor, graph: Graph, grad_outputs: Any = None) -> Conservation:
    """The flow ``sum(value * gradient)`` in and out of each call between ``loss`` and its inputs.

    A rule of relevance conserves it; so do the gradients of ops that are linear in one input, or scale with it, as relu does. A bias leaks
    what it adds. Parameters (``nn.Parameter``) do not count as inputs. ``grad_outputs`` weights ``loss`` as in ``torch.autograd.grad``; the
    graph is retained. Raises ``NotNotedError`` where ``graph`` was not open with ``values=True``. Calls that have no rule, of custom
    Functions, are left out.
    """
    rows = [_flow(visit, graph) for visit in visits(loss, grad_outputs) if isinstance(visit.node, CallNode)]
    rows.sort(key=lambda row: -abs(row.leak))
    lost = sum(abs(row.leak) for row in rows)
    if not rows:
        return Conservation("No call with a rule leads to this loss.")
    worst = rows[0]
    largest = max(abs(row.flow_in) for row in rows)
    if lost <= 1e-5 * largest * len(rows):
        return Conservation(f"Conserved: each of {len(rows)} calls passes on what comes in, to rounding.", rows)
    return Conservation(
        f"Not conserved: {lost:.4g} is lost or added in {len(rows)} calls, most of it, {abs(worst.leak):.4g}, in {worst.op}.",
        rows,
    )


def _flow(visit: Visit, graph: Graph) -> Flow:
    node, values = visit.node, graph.values_of(visit.node)
    flow_in = 0.0 if visit.grad is None else _product(values["result"], visit.grad)
    flow_out = sum(
        _product(values[visit.names[position]], passed)
        for position, passed in visit.passed.items()
        if passed is not None and not _is_parameter(node.parents[position])
    )
    return Flow(node.op, flow_in, flow_out, node.site)


def _is_parameter(parent: Any) -> bool:
    return isinstance(parent, Leaf) and isinstance(parent.variable, torch.nn.Parameter)


def _product(value: Any, grad: Any) -> float:
    """``sum(value * grad)`` in double precision, over lists too; of complex ones the real part."""
    if grad is None or not isinstance(value, torch.Tensor | list | tuple):
        return 0.0
    if isinstance(value, list | tuple):
        grads = grad if isinstance(grad, list | tuple) else [grad]
        differentiable = [v for v in value if isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex())]
        shown = value if len(grads) == len(value) else differentiable
        return sum(_product(v, g) for v, g in zip(shown, grads, strict=True))
    wide = torch.complex128 if value.is_complex() or grad.is_complex() else torch.float64
    product = value.to(wide) * grad.to(wide).conj()
    return float(product.sum().real)
