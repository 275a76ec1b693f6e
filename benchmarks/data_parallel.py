"""A training step in several processes, beside torch's DistributedDataParallel in the same processes, and how its cost grows with them.

    python benchmarks/data_parallel.py

The processes talk over the loopback device by gloo, one thread each. Rounds of ours and of torch's take turns, wall time since processes
wait for one another. Three tables: a step beside torch's; when the buckets leave, in parts of the backward pass; and the time of an
exchange beside a model of latency and bandwidth.
"""

from __future__ import annotations

import argparse
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
WRAPPERS: dict[str, Any] = {
    "torch": torch.nn.parallel.DistributedDataParallel,
    "glassgrad": nn.parallel.DistributedDataParallel,
}


def stepper(wrapped: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        wrapped(x).pow(2).mean().backward()
        optimiser.step()

    return step


def step_times(rounds: int) -> dict[str, Any]:
    """For each network the seconds of a step by torch's wrapper and the ratios of ours to it, round by round."""
    found = {}
    for name, make in NETWORKS.items():
        steps = {}
        for kind, wrap in WRAPPERS.items():
            torch.manual_seed(0)
            module, x = make()
            steps[kind] = stepper(wrap(module), x)
        seconds: dict[str, list[float]] = {kind: [] for kind in steps}
        for turn in range(rounds + 1):
            for kind in list(steps) if turn % 2 else list(steps)[::-1]:
                dist.barrier()
                began = time.perf_counter()
                for _ in range(10):
                    steps[kind]()
                seconds[kind].append((time.perf_counter() - began) / 10)
        ratios = [a / b for a, b in zip(seconds["glassgrad"][1:], seconds["torch"][1:], strict=True)]
        found[name] = (statistics.median(seconds["torch"][1:]), sorted(ratios))
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


def exchanges() -> dict[int, float]:
    """The seconds of one exchange by the number of its bytes: the median of many."""
    found = {}
    for size in (4 << 10, 64 << 10, 1 << 20, 6 << 20):
        flat, taken = torch.zeros(size // 4), []
        for _ in range(15):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(flat)
            taken.append(time.perf_counter() - began)
        found[size] = statistics.median(taken[3:])
    return found


def work(rank: int, size: int, path: str, rounds: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    answer = {"steps": step_times(rounds), "left": departures(), "exchanges": exchanges()}
    if rank == 0:
        queue.put(answer)
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
    return answer


def fitted(size: int, measured: dict[int, float]) -> tuple[float, float]:
    """Latency of a message and bytes a second, from the smallest and the largest exchange, by the model below."""
    small, large = min(measured), max(measured)
    rounds, parts = 2 * (size - 1), 2 * (size - 1) / size
    per_byte = max((measured[large] - measured[small]) / (parts * (large - small)), 1e-15)
    return (measured[small] - parts * small * per_byte) / rounds, 1 / per_byte


def modelled(size: int, latency: float, bandwidth: float, count: int) -> float:
    """A ring of ``size`` processes sends ``2 (size - 1)`` messages of ``count / size`` bytes, one after another."""
    return 2 * (size - 1) * (latency + count / size / bandwidth)


def main() -> None:
    parser = argparse.ArgumentParser(description="DistributedDataParallel beside torch's.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    found = {size: run(size, arguments.rounds) for size in arguments.sizes}
    table = Table(
        "processes", "network", "torch, ms", "ratio", "quartiles", title="A training step beside torch's wrapper"
    )
    for size, answer in found.items():
        for name, (seconds, ratios) in answer["steps"].items():
            low, middle, high = statistics.quantiles(ratios, n=4)
            table.add_row(str(size), name, f"{seconds * 1e3:.2f}", f"{middle:.2f}", f"{low:.2f} - {high:.2f}")
    console.print(table)
    two = found.get(2)
    if two is not None:
        parts = ", ".join(f"{part:.0%}" for part in two["left"])
        console.print(f"Buckets of 1 MB of the large network leave when {parts} of the backward pass are through.\n")
        latency, bandwidth = fitted(2, two["exchanges"])
        console.print(f"Fitted to two processes: latency {latency * 1e6:.0f} us, bandwidth {bandwidth / 1e9:.2f} GB/s.")
        table = Table("processes", "bytes", "measured, ms", "model, ms", title="One exchange")
        for size, answer in found.items():
            for count, seconds in answer["exchanges"].items():
                guess = modelled(size, latency, bandwidth, count)
                table.add_row(str(size), f"{count:,}", f"{seconds * 1e3:.2f}", f"{guess * 1e3:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
