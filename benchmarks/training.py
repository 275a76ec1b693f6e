"""Training steps of networks, glassgrad's beside torch's.

Time is measured in turns in one process, peak memory in a fresh process each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from interleaved import compare, console, report
from peak_memory import peak, print_peak
from rich.table import Table

import nn

ENGINES = ("torch", "glassgrad")
Step = Callable[[], object]


def training_step(
    model: torch.nn.Module, engine: str, data: torch.Tensor, target: torch.Tensor, momentum: float = 0.0
) -> Step:
    """One training step: forward, backward, optimiser."""
    if engine == "glassgrad":
        nn.track(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum)

    def step() -> None:
        F.cross_entropy(model(data).flatten(0, -2), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def run(
    script: str,
    claim: str | None,
    make_step: Callable[[str, str], Step],
    titles: Mapping[str, str],
    rounds: int,
    runs: int,
) -> None:
    """The command of ``script``: every network of ``titles``, whose steps ``make_step(network, engine)`` makes."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument(
        "--peak", nargs=2, metavar=("NETWORK", "ENGINE"), help="only print the peak memory of one step, in bytes"
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    options = parser.parse_args()
    if options.peak:
        print_peak(make_step(*options.peak))
        return
    table = Table("network", "torch MiB", "glassgrad MiB", "ratio", title="Peak memory of a training step above rest")
    for network, title in titles.items():
        timings = compare({engine: make_step(network, engine) for engine in ENGINES}, options.rounds, 1)
        report(f"{title}: one training step", timings, 1e-3, "ms")
        theirs, ours = (peak(script, [network, engine], runs) for engine in ENGINES)
        table.add_row(network, f"{theirs / 2**20:.1f}", f"{ours / 2**20:.1f}", f"{ours / theirs:.3f}")
    console.print(table)
