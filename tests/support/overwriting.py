"""Ops that overwrite a tensor in place."""

from __future__ import annotations

from collections.abc import Callable

import torch


def filled(name: str, *args: object) -> Callable[[torch.Tensor], torch.Tensor]:
    """An op that overwrites a copy of its input, beside a term that keeps the input in the result."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        getattr(y, name)(*args)
        return y * x

    return run
