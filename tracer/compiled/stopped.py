"""What of torch's works on Python's numbers beside the graph, and is stopped before it does so in a step that is captured.

Learning rate schedules, gradient scalers, and what changes the groups of an optimiser.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

import torch
from torch.optim import lr_scheduler

from tracer.errors import CaptureError

_SCHEDULE = "it works on numbers of Python's"
_SCALER = "whether the optimiser steps depends on values, and what is noted of it is Python's"
_GROUPS = "it changes what a graph was made for"
#: Methods of each kind, and why no graph does what they do.
_METHODS: list[tuple[type, tuple[str, ...], str]] = [
    (torch.optim.Optimizer, ("add_param_group", "load_state_dict"), _GROUPS),
    (torch.amp.GradScaler, ("unscale_", "step", "update", "load_state_dict"), _SCALER),
    *(
        (kind, ("__init__", "step", "get_lr", "get_last_lr", "load_state_dict"), _SCHEDULE)
        for kind in vars(lr_scheduler).values()
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)
    ),
]


def _reasons() -> Iterator[tuple[int, str]]:
    for kind, names, reason in _METHODS:
        for name in names:
            if name in vars(kind):
                yield id(inspect.unwrap(vars(kind)[name]).__code__), reason


#: By the id of its code.
REASONS = dict(_reasons())


def caller_of(frame: types.FrameType) -> types.FrameType | None:
    """Who called, beyond what torch wraps methods in so that its compiler leaves them alone."""
    caller = frame.f_back
    while caller is not None and caller.f_globals.get("__name__", "").startswith(("torch._compile", "torch._dynamo")):
        caller = caller.f_back
    return caller


def refusal_of(frame: types.FrameType, line: str) -> CaptureError | None:
    """The error for a call that begins; None for that of a scaler that is turned off."""
    owner = frame.f_locals.get("self")
    if isinstance(owner, torch.amp.GradScaler) and not owner.is_enabled():
        return None
    return CaptureError(
        f"{type(owner).__name__}.{frame.f_code.co_name}() is called in a step that is captured, {line}: {REASONS[id(frame.f_code)]}, and "
        f"a graph would not do it again. Use it outside: after the compiled step."
    )
