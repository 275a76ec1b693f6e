"""``steps``: the backward pass, one call at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ops_registry.sites import Site
from tracer.backprop.visits import Visit, visits
from tracer.node import Node
from tracer.reports.report import as_text, place


class BackwardStep:
    """One call of a backward pass, or one leaf at its end."""

    def __init__(self, visit: Visit) -> None:
        self.node: Node = visit.node
        #: The gradient of the call's result; a tuple with None for a call with several results. None is a gradient of zero.
        self.grad: Any = visit.grad
        #: The gradients of its inputs by the rule's names, each in the shape of its input; a list for an input that is a list.
        self.inputs: dict[str, Any] = {visit.names[i]: grad for i, grad in visit.passed.items()}

    @property
    def op(self) -> str:
        """The op's name; ``leaf`` where a gradient ends."""
        return self.node.op

    @property
    def site(self) -> Site | None:
        """Where the call was made, if a graph with sites was open."""
        return self.node.site

    def __repr__(self) -> str:
        passed = ", ".join(f"{name} {as_text(grad) or '0'}" for name, grad in self.inputs.items())
        where = place(self.site)
        return (
            f"{self.op} {as_text(self.grad) or '0'}"
            + (f" -> {passed}" if passed else "")
            + (f"  ({where})" if where else "")
        )


def steps(loss: Any, grad_outputs: Any = None) -> Iterator[BackwardStep]:
    """The backward pass from ``loss``, one call at a time, newest first; leaves come when their gradient is complete.

    ``loss`` and ``grad_outputs`` are as the outputs of ``torch.autograd.grad``. The graph is retained, ``.grad`` stays as it is, and hooks
    on tensors run. An error of a rule is raised at its step. It may be left half-way.
    """
    return map(BackwardStep, visits(loss, grad_outputs))
