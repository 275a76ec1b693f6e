"""Claim: a report costs a few training steps, and grows with the calls.

Each report on demand, in units of one step (forward, backward) of what it reports on: a small transformer, and an MLP of 40 tiny calls.
Then the seconds that each takes for a chain of 300,000 calls, and of a quarter of them. Processor time, single-threaded; the first
table interleaved in one process.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from graphs import NETWORKS
from interleaved import compare, console, report
from rich.table import Table

import nn
import tracer


@dataclass(frozen=True)
class Run:
    """A forward pass that was recorded: its graph and loss, and a second one to compare it with."""

    model: torch.nn.Module
    graph: tracer.Graph
    loss: torch.Tensor
    other: tracer.Graph
    other_loss: torch.Tensor

    @property
    def parameter(self) -> torch.Tensor:
        """The first parameter: the farthest from the loss."""
        return next(self.model.parameters())


def relu_like(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A rule that is not the one the calls were recorded under."""
    return grad * (result > 0)


def replayed(run: Run) -> object:
    """The gradient of the first parameter by another rule for what the network has most of."""
    op = torch.tanh if "tanh" in run.graph.counts() else torch.relu
    return tracer.replay(run.loss, run.parameter, rules={op: relu_like})


#: What is asked of a graph with sites, values and finite, and of the loss that it led to.
REPORTS: dict[str, Callable[[Run], object]] = {
    "memory": lambda run: tracer.memory(run.graph),
    "memory, by line": lambda run: tracer.memory(run.graph, by="line"),
    "memory, by module": lambda run: tracer.memory(run.graph, by="module"),
    "timings of one pass": lambda run: tracer.timings(run.loss, passes=1),
    "repeats": lambda run: tracer.repeats(run.graph),
    "explain": lambda run: str(tracer.explain(run.graph)),
    "explain, as a page": lambda run: tracer.explain(run.graph).to_html(),
    "draw": lambda run: tracer.draw(run.graph).source,
    "audit": lambda run: str(tracer.audit(run.graph)),
    "steps": lambda run: sum(1 for _ in tracer.steps(run.loss)),
    "contributions": lambda run: tracer.contributions(run.parameter, run.loss),
    "conservation": lambda run: tracer.conservation(run.loss, run.graph),
    "find_nan": lambda run: str(tracer.find_nan(run.graph, run.loss)),
    "why, of a parameter": lambda run: str(tracer.why(run.parameter, run.loss, run.graph)),
    "why, of the model": lambda run: str(tracer.why(run.model, run.loss, run.graph)),
    "path": lambda run: str(tracer.path(run.parameter, run.loss, run.graph)),
    "compare": lambda run: str(tracer.compare(run.graph, run.other)),
    "fingerprint": lambda run: tracer.fingerprint(run.graph),
    "replay": replayed,
}


def record(model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> Run:
    """Two forward passes with all that a graph can note."""
    graphs, losses = [], []
    for _ in range(2):
        with tracer.Graph(sites=True, finite=True, values=True) as graph:
            losses.append(forward())
        graphs.append(graph)
    return Run(model, graphs[0], losses[0], graphs[1], losses[1])


def in_steps(rounds: int) -> None:
    """Each report beside one step."""
    for title, network in NETWORKS.items():
        model, x = network()
        nn.track(model)
        # ``conservation`` follows the flow to the input.
        x = tracer.tensor(x, requires_grad=True)

        def forward(model: torch.nn.Module = model, x: torch.Tensor = x) -> torch.Tensor:
            return model(x).sum()

        def step(forward: Callable[[], torch.Tensor] = forward, model: torch.nn.Module = model) -> None:
            forward().backward()
            model.zero_grad()

        run = record(model, forward)
        asked = {name: (lambda ask=ask, run=run: ask(run)) for name, ask in REPORTS.items()}
        found = compare({"one step": step, **asked}, rounds=rounds, calls=3, clock=time.process_time)
        report(f"{title}, {len(run.graph)} calls", found, 1e-3, "ms")


class Chain(torch.nn.Module):
    """``calls`` small calls, one after the other."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls
        self.weight = torch.nn.Parameter(torch.tensor([0.5, 1.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(self.calls // 3):
            y = (y * self.weight).tanh() + x
        return y


def at_length(calls: int) -> None:
    """Seconds for each report on a long chain, and on a quarter of it."""
    found: dict[str, list[float]] = {name: [] for name in REPORTS}
    for length in (calls // 4, calls):
        model = nn.track(Chain(length))
        x = tracer.tensor([0.5, -1.5], requires_grad=True)
        run = record(model, lambda model=model, x=x: model(x).sum())
        for name, ask in REPORTS.items():
            gc.collect()
            started = time.process_time()
            ask(run)
            found[name].append(time.process_time() - started)
    table = Table(
        "report", f"s for {calls // 4:,} calls", f"s for {calls:,} calls", "ratio", title="A chain of small calls"
    )
    for name, (some, all_) in found.items():
        table.add_row(name, f"{some:.2f}", f"{all_:.2f}", f"{all_ / some:.1f}")
    console.print(table)


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
