"""A training step in several processes, beside torch's DistributedDataParallel in the same processes, and how its cost grows with them.

    python benchmarks/data_parallel.py

The processes talk over the loopback device by gloo, one thread each. Rounds of ours and of torch's take turns, wall time since processes
wait for one another. Three tables: a step beside torch's, with one bucket (which leaves at the end of backward) and compiled too; when the
buckets leave, in parts of the backward pass; and the time of an exchange beside a model.

The model is that of gloo's ring. Each of ``n`` processes cuts the ``B`` bytes into ``n`` parts, and sends a part to its neighbour
``n - 1`` times to add them up, and ``n - 1`` times to hand the sums round:

    ring = 2 (n - 1) (latency + B / (n bandwidth))

A part takes processor time as well, which ``cores`` have to give to all processes: an exchange takes no less than

    work = n 2 (n - 1) (time of a part + B / n * time of a byte) / cores

The four numbers are fitted to two processes; what they say of more is held against what is measured. Other work on the machine only adds:
of many rounds the tenth part that is quickest is what counts.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from interleaved import console
from rich.table import Table
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import nn
import tracer


def small_mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    return mlp(64, 128), torch.randn(32, 64)


def large_mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    return mlp(256, 1024), torch.randn(64, 256)


def mlp(width: int, hidden: int) -> torch.nn.Module:
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(
        *(linear(width, hidden), relu(), linear(hidden, hidden), relu()),
        *(linear(hidden, hidden // 4), linear(hidden // 4, 10)),
    )


def cnn() -> tuple[torch.nn.Module, torch.Tensor]:
    conv, norm, relu = torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.ReLU
    layers = (conv(3, 32, 3), norm(32), relu(), conv(32, 64, 3), norm(64), relu(), torch.nn.Flatten())
    return torch.nn.Sequential(*layers, torch.nn.Linear(64 * 12 * 12, 10)), torch.randn(16, 3, 16, 16)


NETWORKS: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor]]] = {
    "MLP, 6 MB": large_mlp,
    "CNN with batch norm": cnn,
    "MLP, small": small_mlp,
}
KINDS = ("torch", "glassgrad", "one bucket", "compiled")
#: What is sent in one exchange, in bytes.
SIZES = tuple(1 << power for power in (10, 12, 14, 16, 18, 20, 22, 23))
EXCHANGES = 150


def stepper(kind: str, module: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    wrap: Any = torch.nn.parallel.DistributedDataParallel if kind == "torch" else nn.parallel.DistributedDataParallel
    wrapped = wrap(module, bucket_cap_mb=1000 if kind == "one bucket" else None)
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=1e-3)

    def backward(x: torch.Tensor) -> None:
        wrapped(x).pow(2).mean().backward()

    run = tracer.compile(backward, backend="replay") if kind == "compiled" else backward

    def step() -> None:
        optimiser.zero_grad()
        run(x)
        optimiser.step()

    return step


def step_times(rounds: int) -> dict[str, Any]:
    """For each network the seconds of a step by torch's wrapper, and by kind the ratios of ours to it, round by round."""
    found = {}
    for name, make in NETWORKS.items():
        steps = {}
        for kind in KINDS:
            torch.manual_seed(0)
            steps[kind] = stepper(kind, *make())
        seconds: dict[str, list[float]] = {kind: [] for kind in steps}
        for turn in range(rounds + 1):
            for kind in list(steps) if turn % 2 else list(steps)[::-1]:
                dist.barrier()
                began = time.perf_counter()
                for _ in range(10):
                    steps[kind]()
                seconds[kind].append((time.perf_counter() - began) / 10)
        theirs = seconds.pop("torch")[1:]
        ratios = {kind: [a / b for a, b in zip(ours[1:], theirs, strict=True)] for kind, ours in seconds.items()}
        found[name] = (statistics.median(theirs), ratios)
    return found


def departures() -> list[float]:
    """When each bucket of the large network leaves, as parts of the time from the first gradient to the last."""
    torch.manual_seed(0)
    module, x = large_mlp()
    wrapped = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=1)
    left: list[float] = []

    def hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        left.append(time.perf_counter())
        return allreduce_hook(state, bucket)

    wrapped.register_comm_hook(None, hook)
    marks: list[float] = []
    for p in wrapped.parameters():
        p.register_hook(lambda gradient: marks.append(time.perf_counter()))
    for _ in range(5):
        left.clear(), marks.clear()
        wrapped(x).pow(2).mean().backward()
    return [(moment - marks[0]) / (marks[-1] - marks[0]) for moment in left]


def exchanges() -> dict[int, tuple[float, float]]:
    """By the number of bytes, the seconds of one exchange and the processor time that it takes in this process: quick ones of many."""
    taken: dict[int, list[tuple[float, float]]] = {size: [] for size in SIZES}
    for _ in range(EXCHANGES):
        for size in SIZES:
            flat = torch.zeros(size // 4)
            dist.barrier()
            began, busy = time.perf_counter(), time.process_time()
            for _ in range(5):
                dist.all_reduce(flat)
            taken[size].append(((time.perf_counter() - began) / 5, (time.process_time() - busy) / 5))
    return {size: (quick([t for t, _ in pairs]), quick([c for _, c in pairs])) for size, pairs in taken.items()}


def quick(values: list[float]) -> float:
    """The value that a tenth of them do not reach."""
    return statistics.quantiles(values, n=10)[0]


def work(rank: int, size: int, path: str, rounds: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    answer = {
        "steps": step_times(rounds) if rounds > 1 else {},
        "left": departures(),
        "exchanges": exchanges() if size > 1 else {},
    }
    if rank == 0:
        queue.put(answer)
    gc.collect()  # wrappers hold the group, whose threads are to end before the interpreter does
    dist.barrier()
    dist.destroy_process_group()


def run(size: int, rounds: int) -> dict[str, Any]:
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        path = os.path.join(folder, "store")
        processes = [context.Process(target=work, args=(rank, size, path, rounds, queue)) for rank in range(size)]
        for process in processes:
            process.start()
        answer: dict[str, Any] = queue.get(timeout=600)
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError(f"a process of {size} ended with {process.exitcode}")
    return answer


class Model:
    """Seconds of one exchange, fitted to those of some processes by the least squares of relative errors."""

    def __init__(self, size: int, measured: dict[int, tuple[float, float]], cores: int) -> None:
        self.cores = cores
        self.latency, self.per_byte = self._fit(size, {count: t for count, (t, _) in measured.items()})
        self.work, self.work_per_byte = self._fit(size, {count: busy for count, (_, busy) in measured.items()})

    @staticmethod
    def _fit(size: int, seconds: dict[int, float]) -> list[float]:
        parts = 2 * (size - 1)
        rows = [[parts / t, parts * count / size / t] for count, t in seconds.items()]
        found = torch.linalg.lstsq(
            torch.tensor(rows, dtype=torch.float64), torch.ones(len(rows), 1, dtype=torch.float64)
        )
        return [float(number) for number in found.solution]

    def ring(self, size: int, count: int) -> float:
        """What messages take, one after another."""
        return 2 * (size - 1) * (self.latency + count / size * self.per_byte)

    def turns(self, size: int, count: int) -> float:
        """What all processes together take of the cores."""
        return size * 2 * (size - 1) * (self.work + count / size * self.work_per_byte) / min(self.cores, size)


def main() -> None:
    parser = argparse.ArgumentParser(description="DistributedDataParallel beside torch's.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    found = {size: run(size, arguments.rounds) for size in arguments.sizes}
    table = Table("processes", "network", "torch, ms", *KINDS[1:], title="A step, and ours to torch's (quartiles)")
    for size, answer in found.items():
        for name, (seconds, ratios) in answer["steps"].items():
            cells = [statistics.quantiles(ratios[kind], n=4) for kind in KINDS[1:]]
            told = [f"{middle:.2f} ({low:.2f} - {high:.2f})" for low, middle, high in cells]
            table.add_row(str(size), name, f"{seconds * 1e3:.2f}", *told)
    console.print(table)
    if 2 in found:
        parts = ", ".join(f"{part:.0%}" for part in found[2]["left"])
        console.print(f"Buckets of 1 MB of the large network leave when {parts} of the backward pass are through.\n")
        tell_of_exchanges({size: answer["exchanges"] for size, answer in found.items() if size > 1})


def tell_of_exchanges(found: dict[int, dict[int, tuple[float, float]]]) -> None:
    """Print the model, and how far from it each exchange was."""
    model = Model(2, found[2], os.cpu_count() or 1)
    console.print(
        f"Fitted to two processes: latency {model.latency * 1e6:.0f} us, bandwidth {1e-9 / model.per_byte:.2f} GB/s; processor time "
        f"{model.work * 1e6:.0f} us a part and {model.work_per_byte * 1e9:.2f} ns a byte; {model.cores} cores."
    )
    table = Table("processes", "bytes", "measured, ms", "ring, ms", "work, ms", "off by", title="One exchange")
    for size, measured in found.items():
        errors = []
        for count, (seconds, _) in measured.items():
            ring, turns = model.ring(size, count), model.turns(size, count)
            errors.append(seconds / max(ring, turns))
            cells = (f"{value * 1e3:.3f}" for value in (seconds, ring, turns))
            table.add_row(str(size), f"{count:,}", *cells, f"{errors[-1]:.2f}")
        table.add_row(str(size), "median", "", "", "", f"{statistics.median(errors):.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
