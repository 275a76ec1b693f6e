"""Looking on while a script runs: at each backward pass the report is made anew, and the last one counts."""

from __future__ import annotations

import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from ops_registry.errors import GlassgradError
from ops_registry.sites import short_line, user_frame
from tracer.backprop.listeners import listeners
from tracer.commands.answers import NEEDS_LOSS, RUNS_BACKWARD, Moment, ask, is_final
from tracer.commands.subjects import Models, Variables, named_loss, variables_of
from tracer.commands.tracking import Tracking
from tracer.commands.undisturbed import undisturbed
from tracer.graph import Graph
from tracer.reports.report import Report
from tracer.reports.timings import StepTimes


class Watch:
    """Inside ``with Watch(options) as watch:`` a script runs under a graph. ``answer`` gives the report on it, after its end too."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.graph = Graph(sites=True, finite=options.report == "nan")
        self.models = Models()
        self.steps = StepTimes(options.by) if options.report == "timings" else None
        #: How many backward passes have begun: of ours, of torch's own alone, and in other threads, into which the graph does not see.
        self.passes = self.native_passes = self.passes_elsewhere = 0
        #: The newest report, and what it is about.
        self.report: Report[Any] | None = None
        self.about = ""
        #: Why no newer one could be made.
        self.failure = ""
        self.done = False
        self._recorded = 0
        self._busy = False
        self._thread = threading.get_ident()

    def __enter__(self) -> Watch:
        self._open = ExitStack()
        self._open.enter_context(self.models)
        self._open.enter_context(self.graph)
        if self.steps is not None:
            self._open.enter_context(self.steps)
        if self.options.track:
            self._open.enter_context(Tracking())
        listeners.append(self._before_backward)
        return self

    def __exit__(self, *error: Any) -> None:
        listeners.remove(self._before_backward)
        self._open.close()

    def _before_backward(self, outputs: tuple[Any, ...], weights: tuple[Any, ...], tracked: bool) -> Callable[[], None]:
        if self._busy:
            return _nothing
        if threading.get_ident() != self._thread:
            self.passes_elsewhere += 1
            return _nothing
        lost = not tracked and bool(self.graph.recorded()) and not any(_requires_grad(output) for output in outputs)
        if not tracked and not lost:
            self.native_passes += 1
            return _nothing
        self.passes += 1
        if self.done or self.options.step not in (None, self.passes):
            return _nothing
        frame = user_frame()
        place = "" if frame is None else f", at {short_line(frame.f_code.co_filename)}:{frame.f_lineno}"
        if lost:  # torch refuses such a pass: what is asked about is how the history was lost
            self._ask_without_history(outputs[0], variables_of(frame), f"backward pass {self.passes}{place}")
            return _nothing
        self._ask(_weighted(outputs, weights), variables_of(frame), f"backward pass {self.passes}{place}")
        self._recorded = self.graph.recorded()
        if self.report is not None and is_final(self.report, self.options):
            self.done = True
            print(f"tracer: {self.about}: {self.report.verdict}", file=sys.stderr)
        return _nothing if self.steps is None else self.steps.begin_step

    def at_end(self, error: BaseException | None, namespace: dict[str, Any]) -> None:
        """The script has ended: what it did since its last backward pass is asked about where it failed, or had no such pass."""
        failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        if self.done or (self.report is not None and (self.options.step is not None or not failed)):
            return
        if self.graph.recorded() == self._recorded:
            return
        variables: Variables = [namespace]
        trace = None if error is None else error.__traceback__
        while trace is not None:
            variables.insert(0, trace.tb_frame.f_locals)
            trace = trace.tb_next
        loss = named_loss(variables)
        when = "when the script failed" if failed else "at the end of the script"
        if (
            loss is None
            and self.options.report == "why"
            and (lost := named_loss(variables, with_history=False)) is not None
        ):
            self._ask_without_history(lost, variables, f"what is alive {when}")
            return
        if not len(self.graph) or (loss is None and self.options.report in NEEDS_LOSS):
            return
        self._ask(loss, variables, f"what is alive {when}, {'no loss' if loss is None else 'its loss'} included")

    def _ask_without_history(self, loss: torch.Tensor, variables: Variables, about: str) -> None:
        """Ask about a loss that has none: ``why`` finds where it ended; other reports are about what was recorded, without a loss."""
        asked = self.options.report
        if asked != "timings":
            self._ask(loss if asked == "why" else None, variables, f"{about}, of a loss without a history")
        self._recorded = self.graph.recorded()

    def _ask(self, loss: torch.Tensor | None, variables: Variables, about: str) -> None:
        self._busy = True
        moment = Moment(self.graph, self.models, loss, variables, self.steps)
        models = self.models.roots() if self.options.report in RUNS_BACKWARD else []
        try:
            with undisturbed(models):
                self.report, self.about, self.failure = ask(self.options, moment), about, ""
        except GlassgradError as error:
            self.failure = f"{about} could not be asked about: {error}"
        finally:
            self._busy = False


def _requires_grad(output: Any) -> bool:
    """Whether a backward pass can start from it: a gradient edge always has a history."""
    return not isinstance(output, torch.Tensor) or output.requires_grad


def _nothing() -> None:
    """Nothing is to be done at the end of the pass."""


def _weighted(outputs: tuple[Any, ...], weights: tuple[Any, ...]) -> torch.Tensor | None:
    """The scalar whose gradients the pass will compute. None where it starts from gradient edges."""
    terms = [(o, w) for o, w in zip(outputs, weights, strict=False) if isinstance(o, torch.Tensor)]
    if len(terms) == 1 and terms[0][1] is None:
        return terms[0][0]
    total = None
    with torch.enable_grad():
        for output, weight in terms:
            term = (output if weight is None else output * weight).sum()
            total = term if total is None else total + term
    return total
