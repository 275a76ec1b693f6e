"""``contributions``: what each use of a tensor adds to its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch

from ops_registry.sites import Site
from tracer.backprop.accumulate import plus
from tracer.backprop.api import Places, roots_of
from tracer.backprop.sweep import Sweep
from tracer.errors import UnrecordedError
from tracer.graph import backward_order
from tracer.node import Bridge, CallNode, Node, Output
from tracer.recording.parents import any_node
from tracer.reports.report import Report, Row, norm
from tracer.reports.steps import Step, input_names, steps
from tracer.reports.subjects import check_loss, check_tensor

#: Views that are looked through: what is done with the view is the use. Their gradient is the view's, put where it belongs.
_VIEWS = frozenset(
    (
        "H",
        "T",
        "__getitem__",
        "adjoint",
        "as_strided",
        "chunk",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "mH",
        "mT",
        "movedim",
        "narrow",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
    )
)


@dataclass(frozen=True)
class Contribution(Row):
    """One use of the tensor, and what it adds to the gradient."""

    op: str
    #: The argument of the op as which it was used.
    input: str
    #: The views of it that lie between, nearest to the use first.
    through: list[str]
    norm: float
    site: Site | None
    #: The gradient of this use, in the shape and dtype of the tensor.
    grad: torch.Tensor = field(repr=False)


def contributions(parameter: torch.Tensor, loss: Places) -> Report[Contribution]:
    """The gradient that each use of ``parameter`` gives it, largest first; they add up to its gradient in ``loss``.

    A use is a call that takes the tensor, or a view of it (``weight.t()``, ``weight[0]``); one call that takes it twice has two rows. A
    view with hooks on it, or one that other views were written into, is a use itself. ``parameter`` may be a tensor that calls made: its
    uses are those of its present value, after all in-place writes. Each row has ``.grad``, a tensor in the shape of ``parameter``, before
    hooks on it. No ``.grad`` is touched, and the graph is retained.

    Raises ``UnrecordedError`` where ``parameter`` or ``loss`` does not require grad, ``ReportError`` for what is no tensor, and what
    ``torch.autograd.grad`` raises for ``loss``.
    """
    check_tensor("contributions", "the parameter", parameter)
    check_loss("contributions", loss, several=True)
    node = any_node(parameter)
    if node is None:
        raise UnrecordedError(
            f"contributions() was asked of a tensor of shape {tuple(parameter.shape)} that does not require grad. Call requires_grad_() on "
            f"it before it is used."
        )
    uses = _Uses(parameter, node, [root for root, _ in roots_of(_listed(loss), None, False)])
    rows = [row for step in steps(loss) for row in uses.of(step)]
    rows = [*uses.as_outputs(loss), *rows]
    rows.sort(key=lambda row: -row.norm)
    told = f"a tensor of shape {tuple(parameter.shape)}"
    if not rows:
        return Report(
            f"{told} has no use that the loss came from", (), ["It gets no gradient: None, or what is in .grad."]
        )
    total = norm(reduce(plus, [row.grad for row in rows]))
    count = "1 use" if len(rows) == 1 else f"{len(rows)} uses"
    return Report(f"{told} has {count}, and a gradient of norm {total:.4g}", rows)


def _listed(loss: Places) -> tuple[Any, ...]:
    return tuple(loss) if isinstance(loss, tuple | list) else (loss,)


class _Uses:
    """Finds the uses of a tensor among the steps of a backward pass."""

    def __init__(self, tensor: torch.Tensor, node: Node, roots: list[Node]) -> None:
        self.tensor = tensor
        #: By node: the views that lead from there to the tensor, nearest to the node first.
        self.views: dict[Node, list[str]] = {}
        self.roots = roots
        for other in reversed(backward_order(roots)):
            if other is node or (isinstance(other, Bridge) and other.native is tensor):
                self.views[other] = []
            elif isinstance(other, Output) and other.parents[0] in self.views and _is_view(other.parents[0]):
                self.views[other] = self.views[other.parents[0]]
            elif _is_view(other) and other.parents[0] in self.views:
                self.views[other] = [other.op, *self.views[other.parents[0]]]
        self.targets = {n for n, through in self.views.items() if not through}

    def of(self, step: Step) -> Iterator[Contribution]:
        """The uses in one call."""
        if step.node in self.views and step.node not in self.targets:
            return  # a view that is looked through
        if isinstance(step.node, Bridge):
            yield from self._in_torch(step)
            return
        parents = step.node.parents if step.inputs else ()
        for name, parent, grad in zip(input_names(step.node), parents, step.inputs, strict=False):
            if type(parent) is tuple:
                grads = [None] * len(parent) if grad is None else grad
                for i, (one, g) in enumerate(zip(parent, grads, strict=True)):
                    if one in self.views:
                        yield self._row(step.op, f"{name}[{i}]", one, g, step.site)
            elif parent in self.views:
                yield self._row(step.op, name.lstrip("_"), parent, grad, step.site)

    def as_outputs(self, loss: Places) -> Iterator[Contribution]:
        """The uses as what is differentiated itself."""
        for root, grad in roots_of(_listed(loss), None, False):
            if root in self.views:
                yield self._row("output", "", root, grad, None)

    def _in_torch(self, step: Step) -> Iterator[Contribution]:
        """What a tensor of torch's own autograd gets where the history goes on there."""
        if step.node in self.targets or not self.tensor.requires_grad:
            return
        assert isinstance(step.node, Bridge)
        root: Any = step.node.root()
        (grad,) = torch.autograd.grad(root, self.tensor, step.grad, retain_graph=True, allow_unused=True)
        if grad is not None:
            yield Contribution("torch", "", [], norm(grad), None, grad)

    def _row(self, op: str, name: str, at: Node, grad: torch.Tensor | None, site: Site | None) -> Contribution:
        through = self.views[at]
        if grad is None:
            grad = torch.zeros_like(self.tensor.detach())
        elif through:
            grad = self._through_views(at, grad)
        return Contribution(op, name, through, norm(grad), site, grad)

    def _through_views(self, at: Node, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of a view as one of the tensor, by the views' own rules."""
        views = [at]
        while views[-1].parents[0] not in self.targets:
            views.append(views[-1].parents[0])
        target = views[-1].parents[0]
        with Sweep(keep_graph=True, create_graph=False) as sweep:
            return sweep.run_inside([(at, grad)], views, [target])[target]


def _is_view(node: Node) -> bool:
    """Whether the call only shows its one input in another way, and nobody listens to its gradient."""
    if not isinstance(node, CallNode) or node.op not in _VIEWS or len(node.parents) != 1:
        return False
    extras = node.extras
    if extras is None:
        return type(node.parents[0]) is not tuple
    heard = extras.hooks or extras.prehooks or extras.post_hooks or extras.output_hooks
    return not heard and type(node.parents[0]) is not tuple
