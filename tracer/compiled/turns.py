"""Whose turn it is among threads: a capture exchanges what tensors hold, so no other thread runs a graph meanwhile.

Graphs run beside one another, and captures one after another: torch's tracers patch what all threads see.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_free = threading.Condition(_lock)
_making = threading.RLock()
#: By the id of a thread, how many graphs it is running, one inside of another.
_running: dict[int, int] = {}
#: Threads that run a graph and wait for their turn inside of it.
_waiting: set[int] = set()
#: The thread that captures.
_capturing: list[int] = []


class _Runs:
    """A block in which this thread looks for a graph and runs it. It waits for a capture of another thread to end."""

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with _lock:
            while _capturing and _capturing[0] != thread:
                _free.wait()
            _running[thread] = _running.get(thread, 0) + 1

    def __exit__(self, *error: object) -> None:
        thread = threading.get_ident()
        with _lock:
            _running[thread] -= 1
            if not _running[thread]:
                del _running[thread]
                if _waiting:
                    _free.notify_all()


runs = _Runs()


@contextmanager
def making() -> Iterator[None]:
    """One thread at a time makes graphs."""
    with _waits():
        _making.acquire()
    try:
        yield
    finally:
        _making.release()


@contextmanager
def capturing() -> Iterator[None]:
    """No other thread runs a graph in this block. Within ``making``."""
    thread = threading.get_ident()
    with _waits(), _free:
        while not _waiting | {thread} >= _running.keys():
            _free.wait()
        _capturing.append(thread)
    try:
        yield
    finally:
        with _free:
            _capturing.pop()
            _free.notify_all()


@contextmanager
def _waits() -> Iterator[None]:
    """While this thread waits, a graph that it is in the middle of touches nothing."""
    thread = threading.get_ident()
    with _free:
        _waiting.add(thread)
        _free.notify_all()
    try:
        yield
    finally:
        with _free:
            _waiting.discard(thread)
