"""Functionalisation: what a function writes in place becomes values, and what it wrote into its arguments is copied there at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry.torch_private import (
    disable_functionalization,
    enable_functionalization,
    from_functional,
    is_functional,
    sync_functional,
    to_functional,
    values_were_written,
)

Tensors = list[torch.Tensor]


def functionalised(function: Callable[[Tensors], Sequence[Any]], written: list[int]) -> Callable[..., list[Any]]:
    """``function``, called with wrappers around its arguments, whose in-place writes then are no writes to a tracer beneath.

    ``written`` gets the positions of the arguments that it wrote into. Results that are no wrappers are returned as they are.
    """

    def traced(*arguments: torch.Tensor) -> list[Any]:
        wrappers = [to_functional(tensor) for tensor in arguments]
        enable_functionalization(reapply_views=True)
        try:
            results = [_unwrapped(tensor) for tensor in function(wrappers)]
            for wrapper in wrappers:
                sync_functional(wrapper)
        finally:
            disable_functionalization()
        for position, (argument, wrapper) in enumerate(zip(arguments, wrappers, strict=True)):
            if values_were_written(wrapper):
                written.append(position)
                argument.copy_(from_functional(wrapper))
        return results

    return traced


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not is_functional(value):
        return value
    sync_functional(value)
    return from_functional(value)
