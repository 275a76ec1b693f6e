"""Claim: checkpointed, a deep network takes the memory that torch's non-reentrant checkpoint takes.

A transformer of 24 blocks at 8x128x256, one checkpoint a block, one training step; beside it the same without
checkpoints. Time is measured in turns in one process, peak memory in a fresh process each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.utils.checkpoint
from training import Step, run, training_step

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
    """torch's non-reentrant checkpoint of one block."""
    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)


CHECKPOINT = {"torch": torchs, "glassgrad": tracer.checkpoint}


def make_step(network: str, engine: str) -> Step:
    """A training step of the network, checkpointed or kept."""
    torch.manual_seed(0)
    model = Deep(CHECKPOINT[engine] if network == "checkpointed" else None)
    return training_step(model, engine, torch.randn(8, 128, 256), torch.randint(10, (8 * 128,)))


TITLES = {"checkpointed": "24 transformer blocks, checkpointed", "kept": "24 transformer blocks, kept"}

if __name__ == "__main__":
    run(__file__, __doc__, make_step, TITLES, rounds=7, runs=3)
