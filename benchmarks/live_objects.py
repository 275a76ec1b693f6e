"""Claim: no recorded call, no write and no sweep takes longer because the process holds many objects.

Each contestant runs beside itself: in a process that holds little, and after a million objects have been made and kept, of which
the garbage collector knows. Processor time, single-threaded; medians with quartiles of rounds that take turns.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch
from interleaved import console
from rich.table import Table

import tracer

OBJECTS, ROUNDS, CALLS = 1_000_000, 15, 50


def a_call(x: torch.Tensor) -> object:
    return x * 2


def a_view(x: torch.Tensor) -> object:
    return x[1:]


def a_sweep(x: torch.Tensor) -> object:
    return torch.autograd.grad((x * x).tanh().sum(), x)


def a_write_into_a_plain_tensor(x: torch.Tensor) -> object:
    return torch.zeros(4).copy_(x)


def a_write_into_memory_that_an_alias_shares(x: torch.Tensor) -> object:
    return torch.zeros(4).data.mul_(2).add_(x)


def a_write_into_a_tensor_that_a_view_shows(x: torch.Tensor) -> object:
    buffer = torch.zeros(4)
    view = buffer[1:]
    buffer.copy_(x)
    return view


def a_write_inside_vmap(x: torch.Tensor) -> object:
    return torch.vmap(lambda a: (a * 0).add_(x))(torch.ones(2, 4))


CONTESTANTS = (
    a_call,
    a_view,
    a_sweep,
    a_write_into_a_plain_tensor,
    a_write_into_memory_that_an_alias_shares,
    a_write_into_a_tensor_that_a_view_shows,
    a_write_inside_vmap,
)


def seconds(run: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    """Processor time of one call; the collector's own passes over the objects are nobody's here."""
    started = time.process_time()
    for _ in range(CALLS):
        run(x)
    return (time.process_time() - started) / CALLS


def main() -> None:
    torch.set_num_threads(1)
    x = tracer.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    taken: dict[tuple[str, bool], list[float]] = {}
    for run in CONTESTANTS:
        seconds(run, x)
    for _ in range(ROUNDS):
        for many in (False, True):
            gc.enable()
            held = [[i] for i in range(OBJECTS)] if many else []
            gc.collect()  # what lives is old, as in a long-lived process
            gc.disable()
            for run in CONTESTANTS:
                taken.setdefault((run.__name__, many), []).append(seconds(run, x))
            held.clear()
    gc.enable()
    table = Table("call", "us", f"with {OBJECTS:,} objects, relative", "quartiles")
    for run in CONTESTANTS:
        few, lots = taken[run.__name__, False], taken[run.__name__, True]
        low, middle, high = statistics.quantiles([b / a for a, b in zip(few, lots, strict=True)], n=4)
        name = run.__name__.replace("_", " ")
        table.add_row(name, f"{statistics.median(few) * 1e6:.1f}", f"{middle:.2f}", f"{low:.2f} - {high:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
