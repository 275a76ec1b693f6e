"""Worker processes that run one operator at a time: a crash or a hang costs that operator and nothing else."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

from ops_registry.conformance_run import Job, Outcome, load_ops, run, tier_of

#: Fresh processes: a copy of this one could not use a GPU that this one has touched.
_context = multiprocessing.get_context("spawn")


def serve(connection: Connection, source: str) -> None:
    """What a worker does: run what it is sent until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    import torch

    import tracer  # noqa: F401  (loaded, as the operators are, before anyone looks at the clock)

    torch.set_num_threads(1)
    load_ops(source)
    connection.send(None)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(run(job))


class Worker:
    """One process, and the operator that it has in hand."""

    def __init__(self, source: str) -> None:
        self.connection, far_end = _context.Pipe()
        self.process = _context.Process(target=serve, args=(far_end, source), daemon=True)
        self.process.start()
        far_end.close()
        self.ready = False
        self.job: Job | None = None
        self.deadline = float("inf")

    def give(self, job: Job, timeout: float) -> None:
        """Send it an operator."""
        self.job, self.deadline = job, time.monotonic() + timeout
        self.connection.send(job)

    def attend(self, signalled: bool, timeout: float) -> Outcome | None:
        """Take what it has to say. The connection of a worker that crashed or ran out of time is closed afterwards."""
        job = self.job
        if signalled:
            try:
                outcome: Outcome | None = self.connection.recv()
            except (EOFError, ConnectionResetError):
                self.stop()
                if job is None:
                    raise RuntimeError(
                        f"a worker process ended with exit code {self.process.exitcode} before it had anything to do"
                    ) from None
                return _lost(job, f"Crash: the process ended with exit code {self.process.exitcode}", 0.0)
            self.ready, self.job, self.deadline = True, None, float("inf")
            return outcome
        if job is not None and time.monotonic() >= self.deadline:
            self.stop()
            return _lost(job, f"Timeout: not done after {timeout:g} seconds", timeout)
        return None

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.process.join(0.5 if self.job is not None and time.monotonic() < self.deadline else 0)
        self.process.kill()
        self.process.join()
        self.connection.close()


def _lost(job: Job, cause: str, seconds: float) -> Outcome:
    outcome = Outcome(job.op, tier_of(job.op), job.dtype, job.order, seconds=seconds)
    outcome.fail(cause)
    return outcome


def run_all(jobs: list[Job], processes: int, timeout: float) -> Iterator[Outcome]:
    """What came of each operator, as they finish. With no processes at all they run here, unprotected, for a debugger."""
    if not processes:
        yield from map(run, jobs)
        return
    waiting = list(reversed(jobs))
    source = jobs[0].source if jobs else ""
    workers = [Worker(source) for _ in range(min(processes, len(jobs)))]
    try:
        while workers:
            earliest = min(w.deadline for w in workers)
            patience = None if earliest == float("inf") else max(0.0, earliest - time.monotonic())
            signalled = wait([w.connection for w in workers], patience)
            for worker in list(workers):
                outcome = worker.attend(worker.connection in signalled, timeout)
                if outcome is not None:
                    yield outcome
                if worker.connection.closed:
                    workers.remove(worker)
                    if waiting:
                        workers.append(Worker(source))
                elif worker.job is None and not waiting:
                    worker.stop()
                    workers.remove(worker)
                elif worker.job is None and worker.ready:
                    worker.give(waiting.pop(), timeout)
    finally:
        for worker in workers:
            worker.stop()
