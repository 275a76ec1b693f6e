"""Functions run in several processes that talk to each other over the loopback device."""

from __future__ import annotations

import datetime
import os
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def join_group(path: str, rank: int, size: int, seconds: float = 100) -> None:
    """Become process ``rank`` of a group of ``size`` that meets at a file, and whose collectives wait so long for the others."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timeout)


def _work(rank: int, path: str, size: int, seconds: float, function: Callable[[int], Any], queue: Any) -> None:
    join_group(path, rank, size, seconds)
    try:
        answer, error = function(rank), ""
    except BaseException:
        answer, error = None, traceback.format_exc()
    queue.put((rank, answer, error))
    dist.destroy_process_group()


def in_processes(function: Callable[[int], Any], size: int, seconds: float = 100) -> list[Any]:
    """What ``function(rank)`` returns in each of ``size`` processes: numbers, text, lists and dicts of them.

    Raises what one of them has raised, as text. ``seconds``: how long a collective waits for the other processes.
    """
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        path = os.path.join(folder, "store")
        processes = [
            context.Process(target=_work, args=(rank, path, size, seconds, function, queue)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        try:
            answers = sorted(queue.get(timeout=150) for _ in processes)
            for process in processes:
                process.join(30)
        finally:
            for process in processes:
                process.kill()
    errors = [f"rank {rank}: {error}" for rank, _, error in answers if error]
    assert not errors, "\n".join(errors)
    return [answer for _, answer, _ in answers]


def in_two_processes(function: Callable[[int], Any]) -> list[Any]:
    """What ``function(rank)`` returns in each of two processes."""
    return in_processes(function, 2)
