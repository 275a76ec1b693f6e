"""Worker processes that do one job at a time: a crash or a hang costs that job and nothing else."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

#: Fresh processes: a copy of this one could not use a GPU that this one has touched.
_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Work:
    """What workers do. The functions are those of a module, which a fresh process finds by name."""

    #: ``start(argument)`` is called once in each process, before anyone looks at the clock.
    start: Callable[[Any], object]
    argument: Any
    #: ``run(job)`` gives the outcome of a job.
    run: Callable[[Any], Any]
    #: ``lost(job, cause, seconds)`` is the outcome of a job whose process crashed or ran out of time.
    lost: Callable[[Any, str, float], Any]


def serve(connection: Connection, work: Work) -> None:
    """What a worker does: run what it is sent until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    torch.set_num_threads(1)
    torch.ones((), requires_grad=True).backward()  # torch imports much at its first backward pass: not on a job's time
    work.start(work.argument)
    connection.send(None)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(work.run(job))


class Worker:
    """One process, and the job that it has in hand."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.connection, far_end = _context.Pipe()
        self.process = _context.Process(target=serve, args=(far_end, work), daemon=True)
        self.process.start()
        far_end.close()
        self.ready = False
        self.job: Any = None
        self.deadline = float("inf")

    def give(self, job: Any, timeout: float) -> None:
        """Send it a job."""
        self.job, self.deadline = job, time.monotonic() + timeout
        self.connection.send(job)

    def attend(self, signalled: bool, timeout: float) -> Any:
        """Take what it has to say. The connection of a worker that crashed or ran out of time is closed afterwards."""
        job = self.job
        if signalled:
            try:
                outcome = self.connection.recv()
            except (EOFError, ConnectionResetError):
                self.stop()
                if job is None:
                    raise RuntimeError(
                        f"a worker process ended with exit code {self.process.exitcode} before it had anything to do"
                    ) from None
                return self.work.lost(job, f"Crash: the process ended with exit code {self.process.exitcode}", 0.0)
            self.ready, self.job, self.deadline = True, None, float("inf")
            return outcome
        if job is not None and time.monotonic() >= self.deadline:
            self.stop()
            return self.work.lost(job, f"Timeout: not done after {timeout:g} seconds", timeout)
        return None

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.process.join(0.5 if self.job is not None and time.monotonic() < self.deadline else 0)
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_all(work: Work, jobs: Sequence[Any], processes: int, timeout: float) -> Iterator[Any]:
    """What came of each job, as they finish. With no processes at all they run here, unprotected, for a debugger."""
    if not processes:
        work.start(work.argument)
        yield from map(work.run, jobs)
        return
    waiting = list(reversed(jobs))
    workers = [Worker(work) for _ in range(min(processes, len(jobs)))]
    try:
        while workers:
            signalled = _signalled(workers)
            for worker in list(workers):
                outcome = worker.attend(worker.connection in signalled, timeout)
                if outcome is not None:
                    yield outcome
                _go_on(worker, workers, waiting, timeout)
    finally:
        for worker in workers:
            worker.stop()


def _signalled(workers: list[Worker]) -> list[Any]:
    """The connections of those that have something to say, as soon as there is one or a job runs out of time."""
    earliest = min(w.deadline for w in workers)
    left = None if earliest == float("inf") else max(0.0, earliest - time.monotonic())
    return wait([w.connection for w in workers], left)


def _go_on(worker: Worker, workers: list[Worker], waiting: list[Any], timeout: float) -> None:
    """Give a worker its next job; replace one that is gone, and end one that has nothing left to do."""
    if worker.connection.closed:
        workers.remove(worker)
        if waiting:
            workers.append(Worker(worker.work))
    elif worker.job is None and not waiting:
        worker.stop()
        workers.remove(worker)
    elif worker.job is None and worker.ready:
        worker.give(waiting.pop(), timeout)
