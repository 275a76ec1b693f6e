"""Calls of ops that take index tensors, written with lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def on(device: Any, data: Any) -> torch.Tensor:
    return torch.tensor(data, device=device)


def squared(name: str, *args: Any, **kwargs: Any) -> Callable[..., torch.Tensor]:
    """``x.<name>(...) ** 2`` with ``...`` in ``args`` standing for the second input, and lists for index tensors."""

    def function(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        given = [rest[0] * rest[0] if a is ... else on(x.device, a) if isinstance(a, list) else a for a in args]
        named = {k: rest[0] * rest[0] if a is ... else a for k, a in kwargs.items()}
        return getattr(x * x if name.endswith("_") else x, name)(*given, **named) ** 2

    return function
