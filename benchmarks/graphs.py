"""Claim: what an open graph notes costs little beside the step that it watches.

A step (forward, backward) of a small transformer and of an MLP of 40 tiny calls, with no graph, with a plain one, and with each option of
``tracer.Graph``. Ratios are to the step without a graph, in processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from interleaved import compare, report

import nn
import tracer

#: No graph first: it is what the ratios are to.
GRAPHS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no graph": nullcontext,
    "Graph()": tracer.Graph,
    "sites": lambda: tracer.Graph(sites=True),
    "finite": lambda: tracer.Graph(finite=True),
    "values": lambda: tracer.Graph(values=True),
    "sites, finite": lambda: tracer.Graph(sites=True, finite=True),
}


def transformer() -> tuple[torch.nn.Module, torch.Tensor]:
    """Two layers on 8 sequences of 16 tokens of 64 numbers."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 16, 64)


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    """20 layers of 8 numbers on a batch of 4: 40 calls of some microseconds each."""
    layers = [module for _ in range(20) for module in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers), torch.randn(4, 8)


NETWORKS = {"a small transformer": transformer, "an MLP of 40 tiny calls": mlp}


def watched(graph: AbstractContextManager[object], step: Callable[[], object]) -> Callable[[], object]:
    """``step`` inside ``graph``, which is the same from step to step, as around a training loop."""

    def run() -> None:
        with graph:
            step()

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.manual_seed(0)
    for title, make in NETWORKS.items():
        model, data = make()
        nn.track(model)

        def step(model: torch.nn.Module = model, data: torch.Tensor = data) -> None:
            model(data).square().mean().backward()
            model.zero_grad()

        timings = compare(
            {name: watched(open_(), step) for name, open_ in GRAPHS.items()}, options.rounds, 5, time.process_time
        )
        report(f"{title}: one step", timings, 1e-3, "ms")


if __name__ == "__main__":
    main()
