"""Claims: training leaks nothing with the garbage collector off, an open graph stays small, and long chains take linear time.

1,000 steps of the demo's network must leave the process's count of live tensors and of graph nodes where they were; 10,000 steps inside one
graph that notes sites, whether results are finite, or values, the memory of the process. A chain of 3,000, 30,000 and 300,000 ops is
recorded, run backward and freed.
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
from peak_memory import resident
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


def train_under_a_graph() -> None:
    """Print the memory of the process while 10,000 steps are made inside one graph, the garbage collector on."""
    counts = (1_000, 2_000, 5_000, 10_000)
    table = Table(
        "graph", *(f"MiB after {n:,} steps" for n in counts), "calls noted", "cuts", title="Training inside one graph"
    )
    for options in (
        {},
        {"sites": True},
        {"finite": True},
        {"values": True},
        dict.fromkeys(("sites", "finite", "values"), True),
    ):
        layers = [module for _ in range(4) for module in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
        model, data = nn.track(torch.nn.Sequential(*layers)), torch.randn(4, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        found = []
        with tracer.Graph(**options) as graph:
            for i in range(1, counts[-1] + 1):
                optimizer.zero_grad()
                loss = model(data).square().mean()
                loss.backward()
                optimizer.step()
                loss.item()
                if i in counts:
                    found.append(f"{resident('VmRSS') / 2**20:.1f}")
        noted = f"{len(graph.calls()):,}" if graph.notes_finite or "sites" in options else ""
        cut = f"{len(graph.cuts()):,}" if "sites" in options else ""
        table.add_row(", ".join(options) or "plain", *found, noted, cut)
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
    train_under_a_graph()
    chains()
