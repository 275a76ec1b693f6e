"""``contributions``: what each use of a tensor adds to its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ops_registry.sites import Site
from tracer.backprop.visits import Visit, push, visits
from tracer.errors import NoHistoryError
from tracer.node import CallNode, Node
from tracer.recording.parents import any_node
from tracer.reports.report import Report, Row, norm


@dataclass
class Contribution(Row):
    """One use of the tensor."""

    columns: ClassVar[tuple[str, ...]] = ("op", "input", "norm", "site")
    #: The call that used it; ``transpose, linear`` where it used a view of it.
    op: str
    #: What the rule calls the argument.
    input: str
    #: What it adds to the gradient.
    grad: torch.Tensor
    site: Site | None

    @property
    def norm(self) -> float:
        """The Euclidean norm of what it adds."""
        return norm(self.grad)


class Contributions(Report):
    """What ``contributions`` found: a row a use, largest first; they add up to the gradient."""

    columns = Contribution.columns


def contributions(parameter: torch.Tensor, loss: torch.Tensor, grad_outputs: Any = None) -> Contributions:
    """The gradient of each use of ``parameter``, a leaf or not, in ``loss``.

    A use is a call that took the tensor, or a view of it (``weight.t()``); a call that took it twice has two. ``grad_outputs`` weights
    ``loss`` as in ``torch.autograd.grad``. The graph is retained, ``.grad`` stays as it is. Raises ``NoHistoryError`` where one of the two
    does not require grad.
    """
    node = any_node(parameter)
    if node is None:
        raise NoHistoryError(
            f"contributions() was asked for a tensor of shape {tuple(parameter.shape)} that does not require grad"
        )
    using: dict[Node, list[Visit]] = {}
    for visit in visits(loss, grad_outputs, {node}):
        for position in visit.passed:
            for parent in _listed(visit.node.parents[position]):
                if parent is not None and (not using.get(parent) or using[parent][-1] is not visit):
                    using.setdefault(parent, []).append(visit)
    rows = sorted(_uses(node, using), key=lambda row: -row.norm)
    if not rows:
        return Contributions("The tensor is not used in this loss.")
    uses = "1 use adds" if len(rows) == 1 else f"{len(rows)} uses add"
    return Contributions(f"{uses} to the gradient of the tensor of shape {tuple(parameter.shape)}.", rows)


def _listed(parent: Any) -> tuple[Any, ...]:
    return parent if type(parent) is tuple else (parent,)


def _uses(node: Node, using: dict[Node, list[Visit]]) -> Iterator[Contribution]:
    """The uses of ``node``, each with its share; those of a view of it one by one."""
    for visit in using.get(node, ()):
        for name, grad in _shares(visit, node):
            within = _through_view(visit, node, using)
            yield from [Contribution(visit.node.op, name, grad, visit.node.site)] if within is None else within


def _shares(visit: Visit, node: Node) -> Iterator[tuple[str, torch.Tensor]]:
    """By input: what a call adds to the gradient of ``node``; a gradient of zero is left out."""
    for position, passed in visit.passed.items():
        parents = _listed(visit.node.parents[position])
        for parent, grad in zip(
            parents, passed if type(passed) in (list, tuple) else (passed,) * len(parents), strict=True
        ):
            if parent is node and grad is not None:
                yield visit.names[position], grad


def _through_view(visit: Visit, node: Node, using: dict[Node, list[Visit]]) -> list[Contribution] | None:
    """The uses of the view that a call made of ``node``, each taken back through it; None where it made none that was used."""
    view = visit.node
    if not isinstance(view, CallNode) or not view.plan.rule.may_alias or view.outputs is not None:
        return None
    found = []
    for use in _uses(view, using):
        passed = push(view, use.grad).get(0)
        if not isinstance(passed, torch.Tensor):
            return None
        found.append(Contribution(f"{view.op}, {use.op}", use.input, passed, use.site))
    return found or None
