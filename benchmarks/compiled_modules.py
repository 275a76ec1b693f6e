"""Claim: a compiled module takes at most the memory of ``torch.compile``, and about its time.

``tracer.compile(module)`` in an otherwise eager training step, beside ``torch.compile(module)`` and torch eager: the transformer of
``networks.py``, a smaller one, and a CNN with batch norm. Processor time is measured in turns in one process, peak memory in a fresh
process each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from interleaved import compare, console, report
from networks import transformer
from peak_memory import peak, print_peak
from rich.table import Table

import nn
import tracer

Step = Callable[[], object]


def small_transformer() -> torch.nn.Module:
    """Two encoder layers, ``(N, L, 64)`` to ``(N, L, 10)``."""
    layer = torch.nn.TransformerEncoderLayer(
        64, 4, 128, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )
    return torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(64, 10)
    )


def cnn() -> torch.nn.Module:
    """Three convolutions with batch norm, ``(N, 3, H, W)`` to ``(N, 10)``."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.BatchNorm2d(outputs), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))


#: Title, network, shape of the data, number of labels.
NETWORKS: dict[str, tuple[str, Callable[[], torch.nn.Module], tuple[int, ...], int]] = {
    "transformer": ("4-layer transformer, 8x128x256", transformer, (8, 128, 256), 8 * 128),
    "small": ("2-layer transformer, 8x16x64", small_transformer, (8, 16, 64), 8 * 16),
    "cnn": ("CNN with batch norm, 16x3x32x32", cnn, (16, 3, 32, 32), 16),
}
#: What makes the model that the step calls.
ENGINES: dict[str, Callable[[torch.nn.Module], Callable[..., torch.Tensor]]] = {
    "torch": lambda model: model,
    "torch.compile": torch.compile,
    "glassgrad": nn.track,
    "glassgrad replay": lambda model: tracer.compile(nn.track(model), backend="replay"),
    "glassgrad inductor": lambda model: tracer.compile(nn.track(model), backend="inductor"),
}


def make_step(network: str, engine: str) -> Step:
    """A training step of one of the networks: forward and backward of the model compiled, the loss and the optimiser eager."""
    torch.manual_seed(0)
    _, make, shape, labels = NETWORKS[network]
    model, data, target = make(), torch.randn(shape), torch.randint(10, (labels,))
    called = ENGINES[engine](model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        F.cross_entropy(called(data).flatten(0, -2), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    """Print both tables for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", nargs=2, metavar=("NETWORK", "ENGINE"), help="only print the peak memory of one step")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if options.peak:
        print_peak(make_step(*options.peak))
        return
    table = Table(
        "network", *ENGINES, "inductor / torch.compile", title="Peak memory of a training step above rest, MiB"
    )
    for network in options.networks:
        steps = {engine: make_step(network, engine) for engine in ENGINES}
        report(
            f"{NETWORKS[network][0]}: one training step",
            compare(steps, options.rounds, 2, time.process_time),
            1e-3,
            "ms",
        )
        peaks = {engine: peak(__file__, [network, engine], options.runs) for engine in ENGINES}
        ratio = peaks["glassgrad inductor"] / peaks["torch.compile"]
        table.add_row(network, *(f"{found / 2**20:.1f}" for found in peaks.values()), f"{ratio:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
