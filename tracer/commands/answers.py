"""The questions that the command line knows, each asked of the graph of a script at one moment."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import torch

from tracer.commands.subjects import Models, Variables, leaves_to_ask
from tracer.graph import Graph
from tracer.reports.audit import audit
from tracer.reports.explain import explain
from tracer.reports.memory import memory
from tracer.reports.not_finite import find_nan
from tracer.reports.report import Report
from tracer.reports.timings import StepTimes
from tracer.reports.why import why_each

#: What each report answers.
QUESTIONS = {
    "explain": "what was recorded: calls by module, with shapes, parameters, and bytes kept for backward",
    "why": "why each parameter has the gradient that it has: fine, None, zero, nan; the line that is to blame, and the repair",
    "nan": "where nan and inf are born, forward or backward, and the usual repair; of the first backward pass that has any",
    "memory": "what is kept for backward, where, and for which rule",
    "timings": "where the time of a step goes, forward and backward",
    "audit": "which rule gives the gradient of each call, and where it is written",
}

#: Those that run a backward pass of their own.
RUNS_BACKWARD = frozenset({"why", "nan", "timings"})
#: Those that cannot be asked without a loss.
NEEDS_LOSS = frozenset({"why", "timings"})


@dataclass(frozen=True)
class Moment:
    """What there is to ask about."""

    graph: Graph
    models: Models
    loss: torch.Tensor | None
    variables: Variables
    steps: StepTimes | None


def ask(options: Namespace, moment: Moment) -> Report[Any]:
    """The report that ``options.report`` names. Raises what the report raises."""
    graph, loss = moment.graph, moment.loss
    if options.report == "explain":
        return explain(graph, options.depth)
    if options.report == "memory":
        return memory(graph, options.by)
    if options.report == "audit":
        return audit(graph)
    if options.report == "nan":
        return find_nan(graph, loss)
    assert loss is not None
    if options.report == "why":
        names = leaves_to_ask(moment.models, loss, moment.variables)
        return (
            why_each(names, loss, graph) if names else Report("No parameter of the script is alive, nor another leaf.")
        )
    assert moment.steps is not None
    moment.steps.end_step(loss)
    return moment.steps.report()


def is_final(report: Report[Any], options: Namespace) -> bool:
    """Whether no later pass is to be asked: nan has been found that comes somewhere."""
    return options.report == "nan" and bool(report.rows) and not report.rows[0].harmless
