"""Passes of our own that leave nothing behind in a script: neither its random numbers nor the statistics of its models change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def undisturbed(models: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Inside the block what runs may draw random numbers and, as a checkpoint that runs again, change buffers: that is undone."""
    on_gpu = torch.cuda.is_initialized()
    drawn = torch.get_rng_state()
    drawn_on_gpu = torch.cuda.get_rng_state_all() if on_gpu else []
    buffers = {buffer for model in models for buffer in model.buffers() if not buffer.is_meta}
    before = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        torch.set_rng_state(drawn)
        if on_gpu:
            torch.cuda.set_rng_state_all(drawn_on_gpu)
        with torch.no_grad():
            for buffer, value in before:
                # Others are left alone, also their versions: they may be saved for backward.
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
