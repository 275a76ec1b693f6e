"""The results of a call: which of them are new, and making those tracked."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.rule import LISTS
from ops_registry.torch_private import is_batched
from tracer.node import Node
from tracer.recording.levels import levels
from tracer.recording.parents import DIFFERENTIABLE
from tracer.recording.saved import NUMBERS
from tracer.recording.views import note_view, note_view_in_level, note_views
from tracer.tracked_tensor import Tensor, become_tracked

_PLAIN = torch.Tensor
_NEVER_PLAIN = NUMBERS | {Tensor}


def fresh_results(result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], list[int]]:
    """The results of a call as a list, and the positions of those that are new floating tensors.

    A result that came in as an argument (``contiguous()`` of a contiguous tensor) keeps its history; integers and bools stay plain.
    """
    listed = list(result) if isinstance(result, LISTS) and type(result) is not torch.Size else [result]
    # A plain result is none of the numbers and tracked tensors among the arguments.
    others = tuple([value for value in arguments if type(value) not in _NEVER_PLAIN])
    asked = bool(others or keywords)
    fresh = []
    for i, item in enumerate(listed):
        if type(item) is _PLAIN and item.dtype in DIFFERENTIABLE and not (asked and came_in(item, others, keywords)):
            fresh.append(i)
    return listed, fresh


def mark(tensor: torch.Tensor, node: Node | None, source: Any, *, several: bool = False) -> Tensor:
    """Make a fresh result tracked, with ``node`` as its history: None for a constant result, which does not require grad.

    ``source`` is the first argument of the call, which a view was made from; ``several``: the call returned more than one tensor.
    """
    base = tensor._base
    if base is not None:
        note_view(tensor, base, source, several)
    elif levels.open and is_batched(tensor):
        note_view_in_level(tensor, source, several)
    return become_tracked(tensor, node)


def mark_all(listed: list[Any], fresh: list[int], node: Node, source: Any, *, several: bool) -> None:
    """``mark`` for each of the fresh results of one call."""
    results = [listed[i] for i in fresh]
    base = results[0]._base
    if several and base is not None and all(result._base is base for result in results):
        note_views(results, base)
        for i, result in zip(fresh, results, strict=True):
            become_tracked(result, node.of_result(i, result))
        return
    for i in fresh:
        mark(listed[i], node.of_result(i, listed[i]), source, several=several)


def mark_constant(result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], *, several: bool = False) -> Any:
    """Make the fresh results of a call that leaves no node constant results: tracked tensors that do not require grad."""
    if type(result) is _PLAIN:
        if result.dtype in DIFFERENTIABLE and not came_in(result, arguments, keywords):
            mark(result, None, arguments[0] if arguments else None, several=several)
    elif isinstance(result, LISTS) and type(result) is not torch.Size:
        for item in result:
            mark_constant(item, arguments, keywords, several=True)
    return result


def came_in(result: torch.Tensor, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether a result is one of the arguments, or stands in a list among them."""
    for value in (*arguments, *keywords.values()) if keywords else arguments:
        if value is result:
            return True
        if isinstance(value, LISTS):
            for item in value:
                if item is result:
                    return True
    return False
