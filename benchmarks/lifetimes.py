"""Claims: training leaks nothing with the garbage collector off, and long chains take linear time.

1,000 steps of the demo's network must leave the process's count of live tensors and of graph nodes where they were. A
chain of 3,000, 30,000 and 300,000 ops is recorded, run backward and freed.
"""

from __future__ import annotations

import gc
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from interleaved import console
from rich.table import Table

import nn
import tracer

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from train_digits import DigitNet, load

STEPS = 1000


def live_tensors() -> int:
    """How many tensors the garbage collector knows."""
    return sum(1 for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))


def train_without_collector() -> None:
    """Print what is alive after 10 steps of the demo's network, and after 1,000 more."""
    data, model = load(), nn.track(DigitNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, digits = data.train_images[:64], data.train_digits[:64]

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), digits).backward()
        optimizer.step()

    table = Table("after", "live tensors", "graph nodes", title="Training with the garbage collector off")
    gc.collect()
    gc.disable()
    try:
        with tracer.Graph() as graph:
            for _ in range(10):
                step()
            table.add_row("10 steps", str(live_tensors()), str(len(graph)))
            for _ in range(STEPS):
                step()
            table.add_row(f"{STEPS} more", str(live_tensors()), str(len(graph)))
    finally:
        gc.enable()
    console.print(table)


def chains() -> None:
    """Print what an op costs in chains of three lengths."""
    table = Table(
        "ops", "record us/op", "backward us/op", "free us/op", title="A chain of multiplications on 4 elements"
    )
    for length in (3_000, 30_000, 300_000):
        x = tracer.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
        times = [time.perf_counter()]
        y = x
        for _ in range(length):
            y = y * 1.0000001
        times.append(time.perf_counter())
        loss = y.sum()
        loss.backward(retain_graph=True)
        times.append(time.perf_counter())
        del y, loss
        times.append(time.perf_counter())
        table.add_row(f"{length:,}", *(f"{(b - a) / length * 1e6:.2f}" for a, b in pairwise(times)))
    console.print(table)


if __name__ == "__main__":
    train_without_collector()
    chains()
