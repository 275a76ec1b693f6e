"""Claim: a report costs a few training steps, and grows with the calls.

Each report on demand, in units of one step (forward, backward) of what it reports on: a small transformer, and an MLP of 40 tiny calls.
Then the seconds that each takes for a chain of 300,000 calls. Processor time, single-threaded, interleaved in one process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from graphs import NETWORKS
from interleaved import compare, console, report

import nn
import tracer

#: ``report(graph, loss)``.
Ask = Callable[[tracer.Graph, torch.Tensor], object]

#: What is asked of a graph with sites and values, and of the loss that it led to.
REPORTS: dict[str, Ask] = {
    "memory": lambda graph, loss: tracer.memory(graph),
    "memory, by line": lambda graph, loss: tracer.memory(graph, by="line"),
    "memory, by module": lambda graph, loss: tracer.memory(graph, by="module"),
    "timings of one pass": lambda graph, loss: tracer.timings(loss, passes=1),
    "repeats": lambda graph, loss: tracer.repeats(graph),
}


def record(run: Callable[[], torch.Tensor]) -> tuple[tracer.Graph, torch.Tensor]:
    """The graph of a forward pass, and what holds it."""
    with tracer.Graph(sites=True, values=True) as graph:
        loss = run()
    return graph, loss


def in_steps(rounds: int) -> None:
    """Each report beside one step."""
    for title, network in NETWORKS.items():
        model, x = network()
        nn.track(model)

        def forward(model: torch.nn.Module = model, x: torch.Tensor = x) -> torch.Tensor:
            return model(x).sum()

        def step(forward: Callable[[], torch.Tensor] = forward, model: torch.nn.Module = model) -> None:
            forward().backward()
            model.zero_grad()

        recorded = record(forward)
        asked = {name: (lambda ask=ask, recorded=recorded: ask(*recorded)) for name, ask in REPORTS.items()}
        found = compare({"one step": step, **asked}, rounds=rounds, calls=3, clock=time.process_time)
        report(f"{title}, {len(recorded[0])} calls", found, 1e-3, "ms")


def chain(calls: int) -> torch.Tensor:
    """``calls`` small calls, one after the other."""
    x = tracer.tensor([0.5, 1.5], requires_grad=True)
    y = x
    for _ in range(calls // 3):
        y = (y * 1.5).tanh() + x
    return y


def at_length(calls: int) -> None:
    """Seconds for each report on a long chain, and on a third of it."""
    graphs = [record(lambda length=length: chain(length).sum()) for length in (calls // 3, calls)]
    for name, ask in REPORTS.items():
        seconds = []
        for graph, loss in graphs:
            started = time.process_time()
            ask(graph, loss)
            seconds.append(time.process_time() - started)
        told = ", ".join(f"{len(graph):,} calls {s:.2f} s" for (graph, _), s in zip(graphs, seconds, strict=True))
        console.print(f"{name}: {told}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=300_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    in_steps(options.rounds)
    at_length(options.calls)


if __name__ == "__main__":
    main()
