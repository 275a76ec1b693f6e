"""Timing contestants in turns within one process, so that a noisy machine is equally noisy for all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

console = Console(width=110)


@dataclass(frozen=True)
class Timing:
    """Seconds a call of one contestant, and the ratio of each round to the reference in the same round."""

    seconds: float
    ratio: float
    low: float
    high: float


def compare(
    contestants: dict[str, Callable[[], object]],
    rounds: int,
    calls: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run every contestant ``calls`` times in each of ``rounds`` rounds; the first one is the reference of the ratios.

    The order changes from round to round. Figures are medians; ``low`` and ``high`` are the quartiles of the ratio.
    """
    names = list(contestants)
    for run in contestants.values():
        for _ in range(max(1, calls // 2)):
            run()
    taken: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                run = contestants[name]
                started = clock()
                for _ in range(calls):
                    run()
                taken[name].append((clock() - started) / calls)
            gc.collect()
    finally:
        gc.enable()
    found = {}
    for name in names:
        ratios = [a / b for a, b in zip(taken[name], taken[names[0]], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        found[name] = Timing(statistics.median(taken[name]), statistics.median(ratios), low, high)
    return found


def report(title: str, timings: dict[str, Timing], unit: float, unit_name: str) -> None:
    """Print a table of ``compare``'s result; ``unit`` seconds are one ``unit_name``."""
    table = Table("engine", unit_name, f"ratio to {next(iter(timings))}", "quartiles", title=title)
    for name, t in timings.items():
        table.add_row(name, f"{t.seconds / unit:.2f}", f"{t.ratio:.3f}", f"{t.low:.3f} - {t.high:.3f}")
    console.print(table)
