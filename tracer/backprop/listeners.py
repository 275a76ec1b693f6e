"""Who is told of each backward pass before it runs, while all that the forward pass has saved is still there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer.backprop.progress import innermost
from tracer.recording.levels import levels

#: Told where a pass starts, what each output is weighted with (None: 1), and whether the pass is one of ours; what is returned is called
#: once a pass of ours has come through.
Listener = Callable[[tuple[Any, ...], tuple[Any, ...], bool], Callable[[], Any]]

listeners: list[Listener] = []


def announce(outputs: tuple[Any, ...], weights: Any, *, tracked: bool) -> list[Callable[[], Any]]:
    """Tell those who listen; what they want to be called at the end of the pass. One inside another, or ``torch.vmap``, is part of that."""
    if not listeners or innermost() is not None or levels.open:
        return []
    given = tuple(weights) if isinstance(weights, tuple | list) else (weights,) * len(outputs)
    return [listen(outputs, given, tracked) for listen in tuple(listeners)]
