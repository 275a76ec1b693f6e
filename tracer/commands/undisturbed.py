"""Passes of our own that leave nothing behind in a script: neither its random numbers nor the statistics of its models change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def undisturbed(models: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Inside the block what runs may draw random numbers and, as a checkpoint that runs again, change buffers: that is undone."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    buffers = {buffer for model in models for buffer in model.buffers() if not buffer.is_meta}
    before = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                # Others are left alone, also their versions: they may be saved for backward.
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
