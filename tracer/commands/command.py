"""``python -m tracer``: the arguments, the run, the report after it."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from tracer.commands.answers import QUESTIONS
from tracer.commands.progress import shown
from tracer.commands.script import Script, exit_status
from tracer.commands.watch import Watch
from tracer.errors import ReportError
from tracer.reports.report import Report, calls

_DESCRIPTION = """\
Run a script as it is, under a graph, and print a report after it.

The script runs as `python script.py args` would run it: as __main__, with its own arguments, its folder first on sys.path; its output stays
what it was, and its exit status is that of this command. A script that fails, exits or is interrupted gets its report too.
"""

_EPILOG = """\
Which step: the report is made just before each backward pass, while everything is there, and the last one is printed. A run takes one and
a half times as long for explain, memory and audit, two to three times for why and timings, four times for nan. With --step N it is made at
the N-th backward pass alone. nan asks no more after the first pass that has any, and says so at once. why, nan and timings run backward
passes of their own, in which hooks run too; random numbers and buffers are put back. Where the script fails after its last backward pass,
or has none, the report is about what is alive then, and about the tensor that the script names `loss`.

Options stand before the script: what comes after it is the script's.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command with these arguments. Returns the exit status: the script's; 2 where there is none."""
    options = _parser().parse_args(argv)
    out = sys.stdout
    try:
        script = Script(options.script, options.args, is_module=options.m)
    except ReportError as failure:
        print(f"python -m tracer {options.report}: {failure}", file=sys.stderr)
        return 2
    except SyntaxError as failure:
        print("".join(traceback.format_exception_only(failure)), end="", file=sys.stderr)
        return 1
    started = time.perf_counter()
    with Watch(options) as watch:
        with shown(watch):
            error = script.run()
        watch.at_end(error, script.module.__dict__)
    elapsed = time.perf_counter() - started
    status = exit_status(error)
    sys.stderr.flush()
    _write(options, watch, _heading(options, watch, elapsed), out)
    return status


def _parser() -> argparse.ArgumentParser:
    layout = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": _EPILOG}
    parser = argparse.ArgumentParser(prog="python -m tracer", description=_DESCRIPTION, **layout)  # type: ignore[arg-type]
    reports = parser.add_subparsers(dest="report", required=True, metavar="REPORT")
    for name, question in QUESTIONS.items():
        one = reports.add_parser(name, help=question, description=f"Tells {question}.", **layout)  # type: ignore[arg-type]
        one.add_argument(
            "--track", action="store_true", help="track the parameters and leaves of a script of stock torch code"
        )
        one.add_argument(
            "--step", type=_positive, metavar="N", help="ask at the N-th backward pass, from 1 on, instead of the last"
        )
        one.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page that needs no network")
        one.add_argument(
            "--json", action="store_true", help="print the report as JSON, in one line: the last of stdout"
        )
        if name == "explain":
            one.add_argument(
                "--depth", type=_positive, default=2, help="how many levels of modules are shown (default 2)"
            )
        elif name in ("memory", "timings"):
            groups = ("op", "line", "module") if name == "memory" else ("op", "rule", "line", "module")
            one.add_argument("--by", choices=groups, default="op", help="what a row is (default op)")
        one.add_argument("-m", action="store_true", help="SCRIPT is the name of a module, as in python -m")
        one.add_argument("script", metavar="SCRIPT", help="the script")
        one.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _heading(options: argparse.Namespace, watch: Watch, elapsed: float) -> str:
    counts = f"{calls(watch.graph.recorded())} recorded, {_passes(watch.passes)}, {elapsed:.1f} s"
    return f"{options.report} of {options.script}{f': {watch.about}' if watch.about else ''} ({counts})"


def _write(options: argparse.Namespace, watch: Watch, heading: str, out: TextIO) -> None:
    report: Report[Any] = watch.report or Report(_nothing_to_report(options, watch))
    notes = list(_notes(options, watch)) if watch.report is not None else []
    if options.html is not None:
        options.html.write_text(report.to_html(), encoding="utf-8")
        notes.append(f"The page is in {options.html}.")
    if options.json:
        told = {"report": options.report, "script": options.script, "about": watch.about, "notes": notes}
        print(json.dumps({**told, **report.to_dict()}), file=out, flush=True)
        return
    print(f"\n{heading}", file=out)
    if out.isatty() and _has_rich():
        import rich

        rich.print(report, file=out)
    else:
        print(report, file=out)
    for note in notes:
        print(note, file=out)
    out.flush()


def _has_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def _notes(options: argparse.Namespace, watch: Watch) -> list[str]:
    notes = []
    if watch.failure:
        notes.append(f"It is not the newest: {watch.failure}")
    if watch.native_passes:
        notes.append(
            f"{_passes(watch.native_passes)} of torch's own autograd alone, with nothing tracked in it: not in this report."
            + ("" if options.track else " --track lets all parameters be tracked.")
        )
    return notes


def _nothing_to_report(options: argparse.Namespace, watch: Watch) -> str:
    """Why there is no report, and what to do."""
    if watch.failure:
        return f"No report: {watch.failure}"
    if watch.native_passes and not watch.passes:
        told = f"Nothing is tracked: {_passes(watch.native_passes)}, all of torch's own autograd, which nothing here can see into."
        remedy = f"python -m tracer {options.report} --track {'-m ' if options.m else ''}{options.script}"
        if options.track:
            return f"{told} --track did not reach its parameters: call nn.track(model) in the script."
        return f"{told} Let the parameters be tracked: {remedy}"
    if watch.passes_elsewhere and not watch.passes:
        return (
            f"{_passes(watch.passes_elsewhere)}, all in other threads than the script's own: a graph notes the calls of the thread that "
            f"opened it. Let the script train in its main thread."
        )
    if options.step is not None and watch.passes:
        return f"There was no backward pass {options.step}: the script had {_passes(watch.passes)}."
    if not watch.graph.recorded():
        hint = "" if options.track else " Where it is stock torch code, add --track before its name."
        return f"Nothing was recorded: no call took a tracked tensor that requires grad.{hint}"
    if watch.passes:
        told = f"No backward pass could be asked about: {_passes(watch.passes)}, each of a loss without a history."
        return f"{told} Ask where it ended: python -m tracer why {'--track ' if options.track else ''}{options.script}"
    return (
        f"There is nothing to ask about: {calls(watch.graph.recorded())} recorded, but backward() was never called, and at the end "
        f"there was no tensor named loss."
    )


def _passes(count: int) -> str:
    return "1 backward pass" if count == 1 else f"{count:,} backward passes"
