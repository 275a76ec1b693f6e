"""``python -m tracer.checks.compiled_steps``: compiled steps over torch's operator database.

Of every sample of every operator, in every spelling, a step that runs the operator, and goes back through it where it can be
differentiated, is compiled. It is called with the sample, with other values of the same shapes, where a number that was taken from the
values of the first call would show, and with the sample again. Results, gradients and what the operator writes are held to the same step
run eagerly with the same seed. Each sample is

- *equal* to the eager step, each time;
- *refused* by a ``CaptureError``, before anything is computed; or
- *of another stream*: the operator draws random numbers, and ``--backend inductor`` draws them in another way.

Anything else is a failure. ``--ops REGEX`` takes only operators in whose name it finds a match, ``--samples N`` at most N samples an
operator (4 unless said; 0: all), ``--dtype``, ``--noncontiguous`` (every tensor with gaps in memory), ``--jobs N`` worker processes (0:
none), ``--timeout S`` for one operator, ``--json FILE`` for everything that was found. The exit status is 1 when something fails.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from tracer.checks.compiled_steps.check import Job, Outcome, applies, check_op, load, lost_op
from tracer.checks.workers import Work, run_all

DTYPES = ("float64", "float32", "bfloat16", "float16", "complex128", "complex64", "int64", "int32", "uint8", "bool")


def report(outcomes: Iterable[Outcome]) -> int:
    """Print what was found; the exit status."""
    found = list(outcomes)
    counts = sum((outcome.counts for outcome in found), Counter[str]())
    print(f"{len(found)} operators: {', '.join(f'{count} {what}' for what, count in counts.most_common())}")
    streams = sorted(outcome.op for outcome in found if outcome.counts["of another stream"])
    print(f"of another stream: {', '.join(streams) or 'none'}")
    for outcome in found:
        if outcome.refused:
            print(f"  refused: {outcome.op} x{outcome.counts['refused']}: {outcome.refused[0][:200]}")
    failed = [outcome for outcome in found if outcome.failure]
    for outcome in failed:
        print(f"  FAILED: {outcome.op} x{outcome.counts['failed']}: {outcome.failure}")
    return int(bool(failed))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m tracer.checks.compiled_steps", description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="only operators in whose name this expression finds a match")
    parser.add_argument("--samples", type=int, default=4, help="at most so many samples an operator; 0: all")
    parser.add_argument("--backend", default="replay", choices=("replay", "inductor"), help="what runs the graphs")
    parser.add_argument("--dtype", default="float64", choices=DTYPES, help="dtype of the samples")
    parser.add_argument("--noncontiguous", action="store_true", help="every tensor lies in memory with gaps")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes; 0: none, for a debugger")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one operator")
    parser.add_argument("--json", type=Path, help="write everything there")
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype)
    names = [name for name, op in load().items() if re.search(options.ops, name) and applies(op, dtype)]
    jobs = [Job(name, options.backend, dtype, options.samples or None, options.noncontiguous) for name in names]
    outcomes = []
    for outcome in run_all(Work(load, None, check_op, lost_op), jobs, options.jobs, options.timeout):
        outcomes.append(outcome)
        counts = ", ".join(f"{count} {what}" for what, count in outcome.counts.items())
        progress = (
            f"[{len(outcomes)}/{len(jobs)}] {outcome.op}: {counts}, {outcome.seconds:.1f} s {outcome.failure[:200]}"
        )
        print(progress, file=sys.stderr, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([vars(outcome) for outcome in outcomes], indent=1) + "\n")
    return report(outcomes)
