"""What is dear to find out is found out by one worker of a run for all of them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest
from filelock import FileLock

Found = TypeVar("Found")


def once_for_all_workers(factory: pytest.TempPathFactory, find: Callable[[], Found]) -> Found:
    """What ``find()`` returns, which can be pickled: the first worker that asks calls it, the others wait and read its answer."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    answer = folder / f"{find.__module__}.{find.__qualname__}.pickle"
    with FileLock(f"{answer}.lock"):
        if not answer.exists():
            answer.write_bytes(pickle.dumps(find()))
    found: Found = pickle.loads(answer.read_bytes())
    return found
