"""``python -m tracer.checks.conformance``: every operator that torch's own test suite differentiates, through tracked tensors.

Values, gradients and (``--order 2``) second derivatives are compared with torch's own autograd on the same inputs, random state and
cotangents, for every spelling and every sample. ``known_gaps.json`` names what is known to differ, with the reason. The exit
status is 1 when anything else fails, and when something on that list passes.

Which operators: ``--ops REGEX``, ``--tier A`` to ``D``; how they are called: ``--dtype``, ``--order``, ``--samples N``, ``--device``,
``--noncontiguous`` (every tensor with gaps in memory), ``--leaves one`` (one input tracked, the rest plain); how they are run: ``--jobs N``
worker processes (0: none), ``--timeout S``; what is written: ``--json FILE``. ``--gaps FILE`` and ``--source MODULE:NAME`` take another
list of known gaps and another list of operators. Values are compared to the bit.

``--dtype bfloat16 --accuracy`` (or float16) prints another table: how exact each gradient is beside torch's own. The exit status is 1
when an error is more than 1.5 times torch's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tracer.checks.conformance.accuracy import HALF, LIMIT, accuracy_table, check_accuracy, lost_accuracy
from tracer.checks.conformance.check import Job, OpOutcome, check_op, lost_op
from tracer.checks.conformance.operators import DTYPES, applies, load_ops, tier_of
from tracer.checks.op_database import OP_DB
from tracer.checks.workers import Work, run_all

KNOWN_GAPS = Path(__file__).parent / "known_gaps.json"


@dataclass(frozen=True)
class Gap:
    """An operator that is known to fail, in one dtype and to one order."""

    op: str
    variant: str
    dtype: str
    order: int
    reason: str
    #: How the causes begin that it covers, so that a new fault of the same operator is not taken for the known one.
    causes: tuple[str, ...] = ("",)
    #: The ``--leaves`` under which it fails; under each where empty.
    leaves: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What an outcome is looked up by."""
        return (f"{self.op}.{self.variant}" if self.variant else self.op, self.dtype, self.order)


def read_gaps(path: Path, leaves: str = "") -> dict[tuple[str, str, int], Gap]:
    """The list of known gaps, or of those that fail with these ``leaves``."""
    gaps = [Gap(**{**entry, "causes": tuple(entry.get("causes", ("",)))}) for entry in json.loads(path.read_text())]
    by_key = {gap.key: gap for gap in gaps}
    if len(by_key) != len(gaps):
        raise ValueError(f"{path} names a gap twice")
    return {key: gap for key, gap in by_key.items() if not leaves or gap.leaves in ("", leaves)}


@dataclass
class Verdict:
    """How the outcomes and the list of known gaps fit."""

    #: Operators that fail in a way that the list does not name.
    unexpected: list[OpOutcome]
    #: Operators that the list names, and that fail as it says.
    known: list[OpOutcome]
    #: Entries of the list whose operator passes.
    closed: list[Gap]

    @property
    def good(self) -> bool:
        """Whether the list tells the truth."""
        return not self.unexpected and not self.closed


def judge(outcomes: Iterable[OpOutcome], gaps: dict[tuple[str, str, int], Gap]) -> Verdict:
    """Compare what came out with the list of known gaps."""
    verdict = Verdict([], [], [])
    for outcome in outcomes:
        gap = gaps.get((outcome.op, outcome.dtype, outcome.order))
        if outcome.status == "failed":
            covered = gap is not None and all(f.cause.startswith(gap.causes) for f in outcome.failures)
            (verdict.known if covered else verdict.unexpected).append(outcome)
        elif outcome.status == "passed" and gap is not None:
            verdict.closed.append(gap)
    return verdict


# ---------------------------------------------------------------------------------------------- what is shown
def line_of(outcome: OpOutcome, done: int, total: int) -> str:
    """One operator in one line."""
    text = (
        f"[{done}/{total}] {outcome.tier} {outcome.op}: {outcome.status}, {outcome.samples} samples in "
        f"{len(outcome.spellings)} spellings, {outcome.seconds:.1f} s"
    )
    return text + (
        f" ({outcome.failures[0].cause})" if outcome.failures else f" ({outcome.note})" if outcome.note else ""
    )


def with_progress(outcomes: Iterator[OpOutcome], total: int) -> Iterator[OpOutcome]:
    """The same outcomes, with progress on the standard error stream: a bar on a terminal that has rich, lines elsewhere."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        Console = None  # type: ignore[assignment, misc]
    if Console is None or not (console := Console(stderr=True)).is_terminal:
        for done, outcome in enumerate(outcomes, 1):
            print(line_of(outcome, done, total), file=sys.stderr, flush=True)
            yield outcome
        return
    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=total)
        for done, outcome in enumerate(outcomes, 1):
            if outcome.failures:
                progress.console.print(escape(line_of(outcome, done, total)), highlight=False)
            progress.update(bar, advance=1, description=escape(outcome.op))
            yield outcome


def tier_rows(outcomes: Sequence[OpOutcome]) -> list[dict[str, str | int]]:
    """One row a tier, and one for all of them."""
    rows: list[dict[str, str | int]] = []
    for tier in [*sorted({o.tier for o in outcomes}), "all"]:
        members = [o for o in outcomes if tier in (o.tier, "all")]
        rows.append(
            {
                "tier": tier,
                "passed": sum(o.status == "passed" for o in members),
                "total": sum(o.status != "untested" for o in members),
                "untested": sum(o.status == "untested" for o in members),
                "samples": sum(o.samples for o in members),
                "spellings": sum(len(o.spellings) for o in members),
                "comparisons": sum(o.checks for o in members),
                "skipped": sum(o.skipped for o in members),
            }
        )
    return rows


def conformance_report(outcomes: Sequence[OpOutcome], verdict: Verdict) -> str:
    """Summary by tier, failures by cause, and what does not fit the list of known gaps."""
    lines = ["tier  ops passed  untested  samples  spellings  comparisons  skipped (torch itself raises)"]
    for row in tier_rows(outcomes):
        lines.append(
            "{tier:4}  {passed:5}/{total:<5} {untested:8}  {samples:7}  {spellings:9}  {comparisons:11}  {skipped:7}".format(
                **row
            )
        )
    causes: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        for failure in outcome.failures:
            where = f", {failure.spelling}, sample {failure.sample}: {failure.example}" if failure.spelling else ""
            known = " (known gap)" if outcome in verdict.known else ""
            causes[failure.cause].append(f"  {outcome.tier} {outcome.op}{known} x{failure.count}{where}")
    for cause, ops in sorted(causes.items()):
        lines += ["", cause, *ops]
    untested = [f"  {o.tier} {o.op}: {o.note}" for o in outcomes if o.status == "untested"]
    if untested:
        lines += ["", "Nothing to compare:", *untested]
    if verdict.closed:
        lines += ["", "These pass. Take them off the list of known gaps:"]
        lines += [f"  {g.key[0]} {g.dtype}, order {g.order}: {g.reason}" for g in verdict.closed]
    lines += [
        "",
        f"{len(verdict.unexpected)} unexpected failures, {len(verdict.known)} known gaps, "
        f"{len(verdict.closed)} known gaps that pass.",
    ]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------- the command
def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tracer.checks.conformance", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float64", help="dtype of the samples (default: float64)")
    parser.add_argument(
        "--order", type=int, choices=(1, 2), default=1, help="highest derivative to compare (default: 1)"
    )
    parser.add_argument("--accuracy", action="store_true", help="errors in half precision, beside those of torch")
    parser.add_argument("--ops", metavar="REGEX", type=re.compile, help="only operators whose name it finds a match in")
    parser.add_argument("--tier", choices=("A", "B", "C", "D"), help="only this tier")
    parser.add_argument("--samples", type=int, metavar="N", help="at most N samples an operator")
    parser.add_argument(
        "--noncontiguous",
        action="store_true",
        help="every tensor lies in memory with gaps, an offset and its axes reversed",
    )
    parser.add_argument(
        "--leaves",
        choices=("all", "one"),
        default="all",
        help="which inputs are tracked: all, or one at a time and the rest plain (default: all)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="worker processes; 0: none, for a debugger (default: 1)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="seconds for one operator (default: 300)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--gaps", type=Path, default=KNOWN_GAPS, metavar="FILE", help="the list of known gaps")
    parser.add_argument(
        "--source", default=OP_DB, metavar="MODULE:NAME", help="the list of operators (default: torch's)"
    )
    options = parser.parse_args(arguments)
    if options.accuracy and options.dtype not in HALF:
        parser.error(f"--accuracy wants --dtype {' or '.join(HALF)}")
    return options


def report_accuracy(jobs: Sequence[Job], options: argparse.Namespace) -> int:
    """Print the table of errors in half precision; the exit status."""
    work = Work(load_ops, options.source, check_accuracy, lost_accuracy)
    outcomes = []
    for outcome in run_all(work, jobs, options.jobs, options.timeout):
        outcomes.append(outcome)
        print(f"[{len(outcomes)}/{len(jobs)}] {outcome.op}: {outcome.ratio:.2f}", file=sys.stderr, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    print(accuracy_table(outcomes))
    return 1 if any(o.ratio > LIMIT for o in outcomes) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; what it returns is the exit status."""
    options = parsed(arguments)
    names = [
        name
        for name, op in load_ops(options.source).items()
        if (options.ops is None or options.ops.search(name))
        and options.tier in (None, tier_of(name))
        and applies(op, options.dtype, options.order, options.device)
    ]
    if not names:
        print("No operator fits these options.", file=sys.stderr)
        return 2
    how = options.dtype, options.order, options.device, options.samples, options.source
    jobs = [Job(n, *how, options.noncontiguous, options.leaves) for n in names]
    if options.accuracy:
        return report_accuracy(jobs, options)
    outcomes = list(
        with_progress(
            run_all(Work(load_ops, options.source, check_op, lost_op), jobs, options.jobs, options.timeout), len(jobs)
        )
    )
    outcomes.sort(key=lambda o: (o.tier, o.op))
    verdict = judge(outcomes, read_gaps(options.gaps, options.leaves))
    if options.json is not None:
        written = {
            "torch": torch.__version__,
            "dtype": options.dtype,
            "order": options.order,
            "device": options.device,
            "noncontiguous": options.noncontiguous,
            "leaves": options.leaves,
            "summary": tier_rows(outcomes),
            "unexpected": [o.op for o in verdict.unexpected],
            "known": [o.op for o in verdict.known],
            "closed": [asdict(g) for g in verdict.closed],
            "ops": [{**asdict(o), "status": o.status} for o in outcomes],
        }
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    print(conformance_report(outcomes, verdict))
    return 0 if verdict.good else 1
