"""``why``: why a tensor, or each parameter of a model, has the gradient that it has: a verdict, the evidence, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import torch

from ops_registry.sites import Site
from tracer.errors import FreedGraphError, NotNotedError, OverwrittenError, ReportError
from tracer.graph import Graph, backward_order
from tracer.node import Leaf
from tracer.recording.parents import known_node
from tracer.reports.evidence import Evidence, call_of
from tracer.reports.report import Report, Row
from tracer.reports.subjects import check_graph, check_model, check_tensor
from tracer.reports.verdicts import VERDICTS, Cause, causes_of, of_loss

#: Verdicts by which a tensor has no gradient, though its ``.grad`` may be there.
_OF_ANOTHER_LOSS = ("cut", "not in loss", "unused")
_OTHER_LOSS = (
    "ask about each loss by itself. What is computed of .grad has no history: where it is to be part of a loss, take "
    "torch.autograd.grad(..., create_graph=True)."
)


class Why(Report[Cause]):
    """What is known of one tensor: one row for each cause, the likeliest first."""

    title = "Why a tensor has its gradient"

    def __init__(self, causes: Sequence[Cause], has_grad: bool = False) -> None:
        first = causes[0]
        advice = [f"{first.fix}."] if first.fix else []
        if has_grad and first.cause in _OF_ANOTHER_LOSS:
            advice.append(f"This is about one loss. Another backward pass has filled its .grad: {_OTHER_LOSS}")
        super().__init__(first.sentence(), causes, advice)

    @property
    def cause(self) -> str:
        """The likeliest one, in a word."""
        return self.rows[0].cause

    def __str__(self) -> str:
        others = [f"  {cause.sentence()}" for cause in self.rows[1:]]
        return "\n".join([self.verdict, *self.advice, *(["What it may be as well:", *others] if others else [])])

    __repr__ = __str__


@dataclass(frozen=True)
class ParameterRow(Row):
    """One parameter of a model, and the likeliest cause of its gradient."""

    cause: str
    #: Its name; all of them, joined by ``=``, where the model holds it in several places.
    parameter: str
    op: str
    site: Site | None
    #: That of the gradient, for ``ok``, and for ``zero`` where it is rounding and nothing else.
    norm: float | None
    #: All causes, the likeliest first.
    causes: tuple[Cause, ...] = field(repr=False)
    #: Whether its ``.grad`` was there when it was asked about.
    has_grad: bool = field(default=False, repr=False)


class WhyModel(Report[ParameterRow]):
    """One row for each parameter, grouped by cause, the most surprising first."""

    title = "Why the parameters have their gradients"

    def __init__(self, rows: Sequence[ParameterRow], of_loss: Sequence[Cause] = ()) -> None:
        groups: dict[tuple[str, str, str], dict[str, list[ParameterRow]]] = {}
        for row in rows:
            first = row.causes[0]
            alike = ("ok", "", "") if first.cause == "ok" else (first.cause, first.reason, first.fix)
            groups.setdefault(alike, {}).setdefault(_told(row), []).append(row)
        ordered = [
            (list(by_place), [row for group in by_place.values() for row in group]) for by_place in groups.values()
        ]
        ordered.sort(key=lambda group: (list(VERDICTS).index(group[1][0].cause), -len(group[1])))
        told = [f"{_places(places, 1)} ({len(group)} of {_parameters(len(rows))})" for places, group in ordered]
        advice = [
            f"{_places(places, 3)}: {first.reason.removesuffix('.')}.{f' {first.fix}.' if first.fix else ''}"
            for places, group in ordered
            if (first := group[0].causes[0]).cause != "ok"
        ]
        filled = [row.parameter for row in rows if row.has_grad and row.cause in _OF_ANOTHER_LOSS]
        if filled:
            told_of = ", ".join(filled[:2]) + (f" and {len(filled) - 2:,} more" if len(filled) > 2 else "")
            advice.append(f"This is about one loss. Another backward pass has filled .grad of {told_of}: {_OTHER_LOSS}")
        if of_loss and not {"nan", "inf"}.intersection(row.cause for row in rows):  # no gradient tells of it
            told.insert(0, f"the loss is {of_loss[0].told()}")
            advice.insert(0, f"{of_loss[0].sentence()}. {of_loss[0].fix}.")
        verdict = "; ".join(told[:4]) + (f"; and {len(told) - 4} more causes" if len(told) > 4 else "")
        super().__init__(
            verdict or "the model has no parameters", [row for _, group in ordered for row in group], advice
        )


def _places(told: Sequence[str], most: int) -> str:
    """``cut: by detach at helper.py:12 in enc, by detach at net.py:3 and 4 more places``: the places of one cause, ``most`` by name."""
    shown = ", ".join([told[0], *[text.partition(": ")[2] for text in told[1:most]]])
    more = len(told) - most
    return shown if more < 1 else f"{shown} and {'1 more place' if more == 1 else f'{more:,} more places'}"


def _told(row: ParameterRow) -> str:
    return row.causes[0].told().rstrip(":")


def _parameters(count: int) -> str:
    return "1 parameter" if count == 1 else f"{count:,} parameters"


@overload
def why(subject: torch.nn.Module, loss: torch.Tensor | complex, graph: Graph) -> WhyModel: ...
@overload
def why(subject: torch.Tensor, loss: torch.Tensor | complex, graph: Graph) -> Why: ...
def why(subject: torch.Tensor | torch.nn.Module, loss: torch.Tensor | complex, graph: Graph) -> Why | WhyModel:
    """Why ``subject``, a tensor or each parameter of a module, has the gradient that ``loss`` gives it, or has none.

    ``graph`` is a ``tracer.Graph(sites=True)`` that was open during the forward pass; with ``finite=True`` too it finds the first result
    that is not finite more surely. ``loss`` may be of any shape (its elements are summed), without a history, or a number. Verdicts:
    ``ok``, ``unused``, ``not in loss``, ``cut``, ``zero``, ``nan``, ``inf``, ``frozen``, ``overwritten``, and ``untracked`` for a tensor of
    torch's own autograd that no recorded call took. Of several causes the likeliest comes first.

    Costs one backward pass, in which every gradient is looked at once, and a time that grows with the calls; a second pass, or a third,
    where gradients may be rounding and nothing else. They retain the graph and fill no ``.grad``. Hooks on tensors and nodes run in the
    first; where there are any, rounding is not looked for.

    Raises ``NotNotedError`` for a graph without ``sites``, ``ReportError`` for another ``subject``, and for a tensor that the
    loss was made of what its backward pass raises: ``FreedGraphError`` where one has run that did not retain the graph. A module then
    still gets an answer for each parameter: ``unknown`` for these.
    """
    check_graph("why", graph)
    if not graph.notes_sites:
        raise NotNotedError(
            "why() was asked of a graph that does not note sites: open it as tracer.Graph(sites=True) around the forward pass"
        )
    if not isinstance(loss, complex | float | int):
        check_tensor("why", "the loss", loss)
    if isinstance(subject, torch.nn.Module):
        check_model("why", subject)
        return _why_model(subject, loss, graph)
    check_tensor("why", "what it is asked about, which may be a torch.nn.Module too", subject)
    node = known_node(subject)
    _check_order(subject, loss)
    evidence = Evidence(loss, graph, node)
    if node is not None and call_of(node).serial in evidence.reached:
        _raise_what_backward_raised(evidence)
    return Why(causes_of(subject, loss, evidence, with_path=True), subject.is_leaf and subject.grad is not None)


def _check_order(subject: torch.Tensor, loss: Any) -> None:
    """Raise ``ReportError`` where the loss is a leaf that the other tensor was made of."""
    node, of_loss = known_node(subject), known_node(loss) if isinstance(loss, torch.Tensor) else None
    if isinstance(of_loss, Leaf) and node is not None and node is not of_loss and of_loss in backward_order([node]):
        raise ReportError(
            "why() was given, for the loss, a leaf that the tensor asked about was made of. Mind the order: why(tensor, loss, graph)."
        )


def _why_model(model: torch.nn.Module, loss: Any, graph: Graph) -> WhyModel:
    names: dict[torch.Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return why_each(names, loss, graph)


def why_each(names: Mapping[torch.Tensor, Sequence[str]], loss: Any, graph: Graph) -> WhyModel:
    """One row for each of these leaves under its names, as ``why`` has for the parameters of a model."""
    evidence = Evidence(loss, graph)
    rows = []
    for parameter, given in names.items():
        causes = tuple(causes_of(parameter, loss, evidence))
        first = causes[0]
        has_grad = parameter.is_leaf and parameter.grad is not None
        rows.append(ParameterRow(first.cause, " = ".join(given), first.op, first.site, first.norm, causes, has_grad))
    return WhyModel(rows, of_loss(evidence))


def _raise_what_backward_raised(evidence: Evidence) -> None:
    if isinstance(evidence.error, FreedGraphError):
        raise FreedGraphError(
            "why() was asked about a tensor that the loss was made of, after a backward pass that released the graph: its gradient cannot "
            "be looked at any more. Ask before backward(), or pass retain_graph=True to it."
        ) from evidence.error
    if evidence.error is not None and not isinstance(evidence.error, OverwrittenError):
        raise evidence.error
