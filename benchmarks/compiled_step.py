"""Claim: a compiled step takes 0.85 of torch eager's time by inductor, 1.15 replayed, and no more memory than torch eager.

Forward, backward and the clearing of gradients, of an MLP, a CNN with batch norm, a chain of 50 pointwise ops, a
transformer with dropout, an LSTM written out, one of torch's own, and a ResNet-18-shaped CNN. Torch eager,
``torch.compile`` of the loss (its backward is compiled with it), glassgrad eager, and ``tracer.compile`` of the whole
step, replayed and by inductor. Processor time, single-threaded, in turns in one process; peak memory at larger
batches, in a fresh process each. Inductor takes 3 to 100 s a network where its cache (``TORCHINDUCTOR_CACHE_DIR``) is
empty.

``--networks mlp chain``, ``--contestants replay``: only these, beside torch eager. ``--no-memory``: no peaks.
``--fullstep``: steps with their optimisers, which stand outside of the compiled step, or inside (``fullstep=True``).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from interleaved import Timing, compare, console
from networks import LSTM, resnet18
from peak_memory import peak, print_peak
from rich.table import Table

import nn
import tracer

Step = Callable[[], object]
Data = tuple[torch.Tensor, torch.Tensor]

CONTESTANTS = ("torch", "torch.compile", "glassgrad", "replay", "inductor")


class Chain(torch.nn.Module):
    """50 pointwise ops on ``(N, 10)`` behind one scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        for _ in range(10):
            x = (x.tanh() * 1.5 + 0.1).sigmoid() - 0.5
        return x


class LastState(torch.nn.Module):
    """torch's LSTM, and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = torch.nn.LSTM(32, 64, batch_first=True), torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


def mlp() -> torch.nn.Module:
    """Three linear layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )


def cnn() -> torch.nn.Module:
    """Two convolutions with batch norm."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(32, 10),
    )  # fmt: skip


def transformer() -> torch.nn.Module:
    """Two encoder layers with dropout."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(64, 10)
    )


@dataclass(frozen=True)
class Network:
    """A model, the shape of a row of its data, and how much of that is a batch."""

    title: str
    model: Callable[[], torch.nn.Module]
    row: tuple[int, ...]
    rows: int
    #: A batch for the peak memory, whose tensors are of a size that the system's allocator gives back.
    many_rows: int
    #: Classes to tell in each row, one a target.
    targets: int
    #: So many steps are a round.
    steps: int

    def data(self, rows: int) -> Data:
        """Random numbers, and classes below 10."""
        return torch.randn(rows, *self.row), torch.randint(10, (rows * self.targets,))


NETWORKS = {
    "mlp": Network("MLP 64-128-128-10, batch 32", mlp, (64,), 32, 4096, 1, 60),
    "cnn": Network("CNN with batch norm, 8x1x14x14", cnn, (1, 14, 14), 8, 256, 1, 20),
    "chain": Network("chain of 50 pointwise ops, 64x10", Chain, (10,), 64, 32768, 1, 20),
    "transformer": Network("transformer with dropout, 2 layers, 8x16x64", transformer, (16, 64), 8, 256, 16, 5),
    "lstm": Network("LSTM written out, 16x20x32", lambda: LSTM(32, 64), (20, 32), 16, 2048, 20, 5),
    "lstm_layer": Network("torch's LSTM, 16x20x32", LastState, (20, 32), 16, 2048, 1, 5),
    "resnet": Network("ResNet-18-shaped CNN, 8x3x32x32", resnet18, (3, 32, 32), 8, 16, 1, 1),
}


#: Optimisers of full steps, with their options.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD with momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "the same, fused": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, fused=True),
    "Adam": partial(torch.optim.Adam, lr=1e-4),
    "Adam, foreach": partial(torch.optim.Adam, lr=1e-4, foreach=True),
    "Adam, fused": partial(torch.optim.Adam, lr=1e-4, fused=True),
}


def make_full_step(network: str, optimizer: str, backend: str, inside: bool) -> Step:
    """A step with its optimiser, run twice; ``backend`` "torch": all of it is torch's, eagerly."""
    torch.manual_seed(0)
    model = NETWORKS[network].model()
    data, target = NETWORKS[network].data(NETWORKS[network].rows)
    if backend != "torch":
        nn.track(model)
    stepper = OPTIMIZERS[optimizer](model.parameters())

    def forward_and_backward(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(data).flatten(0, -2), target)
        loss.backward()
        return loss

    if backend != "torch" and not inside:
        forward_and_backward = tracer.compile(forward_and_backward, backend=backend)

    def full(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = forward_and_backward(data, target)
        stepper.step()
        stepper.zero_grad()
        return loss

    if inside:
        full = tracer.compile(full, backend=backend, fullstep=True)
    for _ in range(2):
        full(data, target)
    return lambda: full(data, target)


def table_of_full_steps(network: str, backend: str, rounds: int) -> None:
    """Time each optimiser outside and inside of the compiled step, beside torch eager, and print the table."""
    title = f"{NETWORKS[network].title}, {backend}: with the optimiser, relative to torch eager"
    table = Table("optimiser", "torch ms", "outside", "inside", "quartiles", "inside / outside", title=title)
    for optimizer in OPTIMIZERS:
        made = {
            "torch": make_full_step(network, optimizer, "torch", False),
            "outside": make_full_step(network, optimizer, backend, False),
            "inside": make_full_step(network, optimizer, backend, True),
        }
        found = compare(made, rounds, NETWORKS[network].steps, time.process_time)
        inside, outside = found["inside"], found["outside"]
        figures = (f"{t:.2f}" for t in (found["torch"].seconds / 1e-3, outside.ratio, inside.ratio))
        quartiles = f"{inside.low:.2f} - {inside.high:.2f}"
        table.add_row(optimizer, *figures, quartiles, f"{inside.ratio / outside.ratio:.2f}")
    console.print(table)


def make_step(network: str, contestant: str, rows: int) -> tuple[Step, str]:
    """A step, run once, and what was spent on making it, in words."""
    torch.manual_seed(0)
    model = NETWORKS[network].model()
    data, target = NETWORKS[network].data(rows)
    if contestant in ("glassgrad", "replay", "inductor"):
        nn.track(model)

    def loss_of(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(data).flatten(0, -2), target)

    if contestant == "torch.compile":
        loss_of = torch.compile(loss_of)

    def forward_and_backward(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = loss_of(data, target)
        loss.backward()
        return loss

    if contestant in ("replay", "inductor"):
        forward_and_backward = tracer.compile(forward_and_backward, backend=contestant)

    def step() -> None:
        forward_and_backward(data, target)
        model.zero_grad()

    started = time.perf_counter()
    step()
    spent = ""
    if contestant == "torch.compile":
        spent = f"first call {time.perf_counter() - started:.1f} s"
    elif contestant in ("replay", "inductor"):
        (row,) = forward_and_backward.explain().rows
        spent = f"capture {row['capture_seconds']:.1f} s, build {row['build_seconds']:.1f} s, {row['nodes']} nodes"
    return step, spent


def table_of(network: str, contestants: list[str], rounds: int, runs: int) -> dict[str, Timing]:
    """Time every contestant in turns, print the table, and return it."""
    made = {contestant: make_step(network, contestant, NETWORKS[network].rows) for contestant in contestants}
    timings = compare(
        {name: step for name, (step, _) in made.items()}, rounds, NETWORKS[network].steps, time.process_time
    )
    columns = ("step", "ms", "ratio to torch", "quartiles", "spent before", *(["peak MiB", "ratio"] if runs else []))
    table = Table(*columns, title=NETWORKS[network].title)
    peaks = {name: peak(__file__, [network, name], runs) for name in contestants} if runs else {}
    for name, t in timings.items():
        memory = (f"{peaks[name] / 2**20:.2f}", f"{peaks[name] / peaks['torch']:.3f}") if runs else ()
        times = (f"{t.seconds / 1e-3:.3f}", f"{t.ratio:.3f}", f"{t.low:.3f} - {t.high:.3f}")
        table.add_row(name, *times, made[name][1], *memory)
    console.print(table)
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS[1:], default=list(CONTESTANTS[1:]))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument(
        "--fullstep", action="store_true", help="optimisers outside and inside, replayed and by inductor"
    )
    parser.add_argument("--peak", nargs=2, metavar=("NETWORK", "STEP"), help="only print the peak memory of one step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        network, contestant = options.peak
        print_peak(make_step(network, contestant, NETWORKS[network].many_rows)[0])
        return
    if options.fullstep:
        for network in options.networks:
            for backend in filter(options.contestants.__contains__, ("replay", "inductor")):
                table_of_full_steps(network, backend, options.rounds)
        return
    names = ["torch", *options.contestants]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for network in options.networks:
        for name, timing in table_of(network, names, options.rounds, 0 if options.no_memory else 3).items():
            ratios[name].append(timing.ratio)
    for name in names[1:]:
        console.print(f"{name}: geometric mean {statistics.geometric_mean(ratios[name]):.3f}")


if __name__ == "__main__":
    main()
