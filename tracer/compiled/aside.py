"""Where a compiled step or module runs as it is written: somebody looks at each call, or changes it, and a graph has none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.scopes import watched
from ops_registry.torch_private import (
    DeviceContexts,
    count_dispatch_modes,
    count_modes,
    dual_level,
    function_modes,
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    saved_tensors_hooks,
)


def steps_aside() -> bool:
    """Whether here is another capture, a mode of the user's, forward-mode tangents, or anomaly mode."""
    return (
        count_dispatch_modes() > 0
        or torch.is_anomaly_enabled()
        or dual_level() >= 0
        or watched()
        or (count_modes() > 0 and not all(type(mode) is DeviceContexts.DeviceContext for mode in function_modes()))
    )


@contextmanager
def outside_of_checkpoints() -> Iterator[None]:
    """Without the hooks of checkpoints around: what a step saves it uses up itself, and nothing of it is to be computed again."""
    taken = []
    while in_checkpoint():
        taken.append(saved_tensors_hooks(False))
        pop_saved_tensors_hooks()
    try:
        yield
    finally:
        for pair in reversed(taken):
            push_saved_tensors_hooks(*pair)


def in_checkpoint() -> bool:
    """Whether the innermost hooks on saved tensors are those of a checkpoint."""
    pair = saved_tensors_hooks(False)
    return pair is not None and getattr(pair[0], "__module__", "") == "torch.utils.checkpoint"


def default_devices() -> tuple[Any, ...]:
    """The devices that ``with torch.device(...)`` and ``torch.set_default_device`` name here, which are modes as well."""
    return tuple([mode.device for mode in function_modes()]) if count_modes() else ()
