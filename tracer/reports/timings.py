"""``timings``: where the time goes, forward and backward, by op, rule, line or module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any

import torch

from ops_registry.binding import Kind, Spelling
from ops_registry.registry import active
from ops_registry.sites import find_site, short_line
from tracer.backprop.accumulate import leaving_grad_alone
from tracer.backprop.api import Places, as_tuple, roots_of
from tracer.backprop.sweep import Sweep
from tracer.errors import GradientArgumentError
from tracer.graph import Graph, backward_order
from tracer.node import CallNode, Leaf, Node, OpaqueNode, Output
from tracer.recording.intercept import run_in_lane
from tracer.recording.observed import ObservedTable
from tracer.reports.grouping import check_by, check_sites, group_of, group_of_site
from tracer.reports.report import Report, Row, calls
from tracer.reports.subjects import check_loss

#: The row for what is no call: Python, and calls of which nobody wants a gradient, in forward; the order of the nodes in backward.
BETWEEN = "(between the calls)"


@dataclass(frozen=True)
class TimingRow(Row):
    """The time of the calls of one op, rule, line or module, in one pass."""

    #: The op, the rule, the line with its full path, or the module.
    what: str
    #: How many calls there are in one pass.
    calls: int
    #: Milliseconds; None where none was timed: the forward pass of a tensor, the backward pass of what is not recorded.
    forward_ms: float | None
    backward_ms: float | None
    #: Of the time of both passes.
    share: float

    @property
    def total_ms(self) -> float:
        """Milliseconds of both passes."""
        return (self.forward_ms or 0.0) + (self.backward_ms or 0.0)

    def cells(self) -> list[str]:
        times = ["" if ms is None else f"{ms:.3f}" for ms in (self.forward_ms, self.backward_ms)]
        return [short_line(self.what), f"{self.calls:,}", *times, f"{100 * self.share:.1f}%"]


class Timings(Report[TimingRow]):
    """What ``timings`` returns. ``by`` is what it was asked for."""

    title = "Timings"

    def __init__(self, verdict: str, rows: Sequence[TimingRow], advice: Sequence[str], by: str) -> None:
        super().__init__(verdict, rows, advice)
        self.by = by


def timings(loss: Places | Callable[[], Places], by: str = "op", *, passes: int = 5) -> Timings:
    """Where the time of ``loss`` goes: one row for an ``"op"``, a ``"rule"``, a ``"line"`` of yours, or a ``"module"``, longest first.

    ``loss`` is a tensor (or several), or a function of no arguments that makes one. Of a tensor the backward pass is timed, as often as
    ``passes`` says; the graph is retained and no ``.grad`` is touched. A forward pass cannot be timed once it is over, so its column needs
    the function: ``tracer.timings(lambda: loss_of(model(x), y))``. It is run ``2 * passes + 1`` times, with all that it does (random
    numbers, statistics of a batch norm).

    Times are wall-clock, the medians over the passes: of a call in forward with its recording, of a call in backward with hooks,
    projection and accumulation; filling ``.grad``, and what goes on in torch's own autograd, are not in it. What a call runs inside is
    counted for it: a checkpoint's second run for the call that asked for it in backward. What runs inside a custom Function or a
    ``torch.vmap`` in forward is counted for the ops there, so its own row has no forward time. Calls in a ``use`` block that the function
    opens itself count as between the calls; open it around ``timings``. On a GPU each call is waited for, so that its time is its own; what
    overlaps in an unwatched pass does not here. The first advice says what the watching cost, by unwatched passes in between.

    Lines and modules of a tensor need ``tracer.Graph(sites=True)`` around its forward pass; for a function one is opened.

    Raises ``NotNotedError`` where lines or modules were not noted, ``GradientArgumentError`` for another ``by`` and for less than one pass,
    ``ReportError`` for what is no loss, given or returned, and what a backward pass raises.
    """
    check_by("timings", by, ("op", "rule", "line", "module"))
    if passes < 1:
        raise GradientArgumentError(f"timings(passes={passes}): it takes one pass or more")
    made = loss if callable(loss) and not isinstance(loss, torch.nn.Module) else None
    outputs = _outputs(loss if made is None else made())
    wait = _waiter(outputs)
    runs: list[_Pass] = []
    for turn in range(passes):
        for watched in (turn % 2 == 0, turn % 2 == 1):  # neither is always the first
            run = _Pass(by, watched, wait)
            if made is not None:
                outputs = ()  # what the pass before has made is freed outside of what is timed
                outputs = run.forward(made)
            run.backward(outputs)
            runs.append(run)
    rows = _rows([run for run in runs if run.watched])
    return Timings(_verdict(rows, runs, made is not None), rows, _advice(runs, made is not None), by)


def _outputs(given: Any) -> tuple[Any, ...]:
    check_loss("timings", given, several=True)
    return as_tuple(given)


class _Pass:
    """One forward and backward pass; ``watched``: call by call."""

    def __init__(self, by: str, watched: bool, wait: Callable[[], None]) -> None:
        self.by, self.watched, self.wait = by, watched, wait
        self.forward_times: dict[str, float] = {}
        self.backward_times: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        #: Seconds of the whole of it.
        self.forward_total = self.backward_total = 0.0

    def forward(self, make: Callable[[], Places]) -> tuple[Any, ...]:
        """Run the function."""
        watch = _Watch(self.by, self.wait) if self.watched else None
        sites = self.watched and self.by in ("line", "module")
        with Graph(sites=True) if sites else nullcontext(), watch or nullcontext():
            self.wait()
            started = perf_counter()
            outputs = _outputs(make())
            self.wait()
            self.forward_total = perf_counter() - started
        if watch is not None:
            self.forward_times = {**watch.seconds, BETWEEN: self.forward_total - watch.own - watch.inside}
            self.forward_total -= watch.own
            self.counts = watch.counts
        return outputs

    def backward(self, outputs: tuple[Any, ...]) -> None:
        """Sweep from the outputs to all leaves."""
        roots = roots_of(outputs, None, False)
        leaves: set[Node] = {node for node in backward_order([node for node, _ in roots]) if isinstance(node, Leaf)}
        sweep = _TimedSweep(self.wait) if self.watched else Sweep(keep_graph=True, create_graph=False)
        self.wait()
        started = perf_counter()
        with leaving_grad_alone(), sweep:
            sweep.run(roots, leaves, through_bridges=True)
        self.wait()
        self.backward_total = perf_counter() - started
        if isinstance(sweep, _TimedSweep):
            self._note(sweep.seconds)

    def _note(self, seconds: Mapping[Node, float]) -> None:
        nodes = [node for node in seconds if isinstance(node, CallNode | OpaqueNode)]
        check_sites("timings", self.by, nodes)
        times: dict[str, float] = defaultdict(float)
        counts: Counter[str] = Counter()
        for node in nodes:
            name = group_of(node, self.by)
            times[name] += seconds[node]
            counts[name] += 1
        self.backward_times = {**times, BETWEEN: self.backward_total - sum(times.values())}
        for name, count in counts.items():
            self.counts[name] = max(self.counts[name], count)


class _Watch:
    """The calls made inside ``with watch:``, each timed by an observer in the table of rules. A call without one pays nothing."""

    def __init__(self, by: str, wait: Callable[[], None], *, needs_grad: bool = False) -> None:
        self.by = by
        #: Only calls while gradients are on are timed.
        self.needs_grad = needs_grad
        self._busy = False
        self.clear(wait)

    def clear(self, wait: Callable[[], None]) -> None:
        """Begin anew; ``wait`` is called before and after each call."""
        self.wait = wait
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        #: Seconds of all calls, and of the watching itself.
        self.inside = self.own = 0.0

    def __enter__(self) -> _Watch:
        self._table = active.table
        kinds = (Kind.RULE, Kind.IN_PLACE, Kind.NO_GRADIENT, Kind.COMPOSED)
        active.table = ObservedTable(self._table, lambda spelling: True, self._observe, kinds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        active.table = self._table

    def _observe(
        self, spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # What a call that is timed runs inside is part of it.
        if self._busy or (self.needs_grad and not torch.is_grad_enabled()):
            return run_in_lane(spelling, func, args, kwargs)
        self._busy = True
        arrived = perf_counter()
        self.wait()
        started = perf_counter()
        try:
            result = run_in_lane(spelling, func, args, kwargs)
            self.wait()
            ended = perf_counter()
        finally:
            self._busy = False
        name = self._group_of(spelling, result)
        self.seconds[name] += ended - started
        self.counts[name] += 1
        self.inside += ended - started
        self.own += perf_counter() - ended + started - arrived
        return result

    def _group_of(self, spelling: Spelling, result: Any) -> str:
        if self.by in ("line", "module"):
            return group_of_site(find_site(spelling.rule.name, 3), self.by)
        node = _node_of(result)
        if node is not None and node.op == spelling.rule.name:
            return group_of(node, self.by)
        return spelling.rule.name if self.by == "op" else f"{spelling.rule.name}: no rule was used"


class StepTimes:
    """The time of each step of a loop that somebody else runs, from ``with`` on: forward as it runs, backward by passes of our own.

    A step is what comes between two backward passes: data, optimiser and all else that is no recorded call stands as between the calls.
    """

    #: Of so many steps the median is taken, the latest.
    STEPS = 5

    def __init__(self, by: str) -> None:
        check_by("timings", by, ("op", "rule", "line", "module"))
        self.by = by
        self._runs: list[_Pass] = []

    def __enter__(self) -> StepTimes:
        self._watch = _Watch(self.by, _waiter(()), needs_grad=True).__enter__()
        self.begin_step()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)

    def end_step(self, loss: torch.Tensor) -> None:
        """The backward pass of ``loss`` is about to run: it is timed here, twice, and retains the graph. No ``.grad`` is touched."""
        wait, watch = _waiter((loss,)), self._watch
        wait()
        forward = perf_counter() - self._began - watch.own
        for watched in (True, False):
            run = _Pass(self.by, watched, wait)
            run.forward_total = forward
            if watched:
                run.forward_times = {**watch.seconds, BETWEEN: forward - watch.inside}
                run.counts = watch.counts
            run.backward((loss,))
            self._runs.append(run)
        del self._runs[: -2 * self.STEPS]
        watch.clear(wait)

    def begin_step(self) -> None:
        """The loop's own backward pass has come through."""
        self._began = perf_counter()

    def report(self) -> Timings:
        """The medians over the latest steps. At least one has ended."""
        rows = [row for row in _rows([run for run in self._runs if run.watched]) if row.calls or row.total_ms]
        advice = (
            f"Medians of {len(self._runs) // 2} steps. {BETWEEN} in forward is all else in a step: data, optimiser, printing, calls of "
            f"which nobody wants a gradient."
        )
        return Timings(_verdict(rows, self._runs, forward=True), rows, [advice], self.by)


class _TimedSweep(Sweep):
    """A sweep in the general lane that times each node."""

    fast = False

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__(keep_graph=True, create_graph=False)
        self._wait = wait
        self.seconds: dict[Node, float] = {}

    def _visit_node(self, node: Node) -> None:
        started = perf_counter()
        super()._visit_node(node)
        self._wait()
        self.seconds[node] = perf_counter() - started


def _node_of(result: Any) -> Node | None:
    """The node of a call by its result."""
    first = (
        result
        if isinstance(result, torch.Tensor)
        else next(iter(result), None)
        if isinstance(result, tuple | list)
        else None
    )
    node: Node | None = getattr(first, "_node", None)
    return node.parents[0] if isinstance(node, Output) and node.parents else node


def _waiter(outputs: Iterable[Any]) -> Callable[[], None]:
    """What waits until every accelerator that the tensors or their leaves are on has done what it was told; nothing to wait for on the CPU.

    It waits for all streams of a device. A loss on the CPU says nothing of where it was computed, so the leaves are asked too.
    """
    accelerator = torch.accelerator.current_accelerator()
    leaves = [
        n.variable
        for n in backward_order([node for node, _ in roots_of(tuple(outputs), None, False)])
        if isinstance(n, Leaf)
    ]
    tensors = [tensor for tensor in (*outputs, *leaves) if isinstance(tensor, torch.Tensor)]
    devices = {
        tensor.device for tensor in tensors if accelerator is not None and tensor.device.type == accelerator.type
    }

    def wait() -> None:
        for device in devices:
            torch.accelerator.synchronize(device)

    return wait


def _rows(watched: Sequence[_Pass]) -> list[TimingRow]:
    names = dict.fromkeys(name for run in watched for name in (*run.forward_times, *run.backward_times))
    times = {
        name: (_median(name, [r.forward_times for r in watched]), _median(name, [r.backward_times for r in watched]))
        for name in names
    }
    total = sum(f + b for f, b in times.values()) or 1.0
    ahead = {name for run in watched for name in run.forward_times}
    behind = {name for run in watched for name in run.backward_times}
    rows = [
        TimingRow(
            name,
            watched[-1].counts[name],
            1e3 * f if name in ahead else None,
            1e3 * b if name in behind else None,
            (f + b) / total,
        )
        for name, (f, b) in times.items()
    ]
    return sorted(rows, key=lambda row: (row.what == BETWEEN, -row.total_ms, row.what))


def _median(name: str, passes: Sequence[Mapping[str, float]]) -> float:
    return median(times.get(name, 0.0) for times in passes)


def _verdict(rows: Sequence[TimingRow], runs: Sequence[_Pass], forward: bool) -> str:
    plain = [run for run in runs if not run.watched]
    backward = 1e3 * median(run.backward_total for run in plain)
    told = f"backward {backward:.3f} ms"
    if forward:
        told = f"forward {1e3 * median(run.forward_total for run in plain):.3f} ms, {told}"
    first = next((row for row in rows if row.what != BETWEEN), None)
    most = "" if first is None else f"; most for {short_line(first.what)}: {first.share:.0%}"
    return f"{told}, medians of {len(plain)} passes over {calls(sum(row.calls for row in rows))}{most}"


def _advice(runs: Sequence[_Pass], forward: bool) -> list[str]:
    pairs = [(a, b) if a.watched else (b, a) for a, b in zip(runs[::2], runs[1::2], strict=True)]
    cost = f"{median(watched.backward_total / plain.backward_total for watched, plain in pairs):.2f} in backward"
    if forward:
        cost += f" and {median(watched.forward_total / plain.forward_total for watched, plain in pairs):.2f} in forward"
    advice = [f"Timed call by call, a pass comes to {cost} of one that nobody watches."]
    if not forward:
        advice.append(
            "The forward pass is over and was not timed: give timings() a function that returns the loss, as in "
            "tracer.timings(lambda: loss_of(model(x)))."
        )
    return advice
