"""Claim: checkpointed, a deep network takes the memory that torch's non-reentrant checkpoint takes.

A transformer of 24 blocks at 8x128x256, one checkpoint a block, one training step; beside it the same without checkpoints. Time is measured
in turns in one process, peak memory in a fresh process each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from interleaved import compare, console, report
from peak_memory import peak, print_peak
from rich.table import Table

import nn
import tracer


class Deep(torch.nn.Module):
    """24 blocks, each checkpointed by ``checkpoint`` where one is given."""

    def __init__(self, checkpoint: Callable[..., torch.Tensor] | None) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                256, 8, 1024, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(24)
        )
        self.head = torch.nn.Linear(256, 10)
        self.checkpoint = checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.checkpoint is None else self.checkpoint(block, x)
        return self.head(x)


def torchs(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)


CHECKPOINT = {"torch": torchs, "glassgrad": tracer.checkpoint}


def make_step(engine: str, checkpointed: str) -> Callable[[], object]:
    """One training step: forward, backward, optimiser."""
    torch.manual_seed(0)
    model = Deep(CHECKPOINT[engine] if checkpointed == "checkpointed" else None)
    if engine == "glassgrad":
        nn.track(model)
    data, target = torch.randn(8, 128, 256), torch.randint(10, (8 * 128,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        F.cross_entropy(model(data).flatten(0, -2), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peak", nargs=2, metavar=("ENGINE", "CHECKPOINTED"), help="only print the peak memory, in bytes"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.peak:
        print_peak(make_step(*options.peak))
        return
    table = Table("network", "torch MiB", "glassgrad MiB", "ratio", title="Peak memory of a training step above rest")
    for checkpointed in ("checkpointed", "kept"):
        timings = compare({e: make_step(e, checkpointed) for e in CHECKPOINT}, options.rounds, 1)
        report(f"24 transformer blocks, {checkpointed}: one training step", timings, 1e-3, "ms")
        theirs, ours = (peak(__file__, [e, checkpointed], 3) for e in CHECKPOINT)
        table.add_row(checkpointed, f"{theirs / 2**20:.1f}", f"{ours / 2**20:.1f}", f"{ours / theirs:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
