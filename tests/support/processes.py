"""Functions run in two processes that talk to each other over the loopback device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def join_group(path: str, rank: int, size: int) -> None:
    """Become process ``rank`` of a group of ``size`` that meets at a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)


def _work(rank: int, path: str, function: Callable[[int], Any], queue: Any) -> None:
    join_group(path, rank, 2)
    try:
        queue.put((rank, function(rank)))
    finally:
        dist.destroy_process_group()


def in_two_processes(function: Callable[[int], Any]) -> list[Any]:
    """What ``function(rank)`` returns in each of two processes: numbers, text, lists and dicts of them."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        arguments = [(rank, os.path.join(folder, "store"), function, queue) for rank in range(2)]
        processes = [context.Process(target=_work, args=a) for a in arguments]
        for process in processes:
            process.start()
        answers = dict(queue.get(timeout=120) for _ in processes)
        for process in processes:
            process.join(30)
    return [answers[rank] for rank in range(2)]
