"""A call of an op and the tensors that it is made with: what the tables of realistic calls are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Make = Callable[[], torch.Tensor]

POINTS = (1000, 1000)
ROWS = (256, 1024)
TOKENS = (8, 512, 768)
IMAGES = (32, 64, 56, 56)
FEW_IMAGES = (8, 64, 56, 56)
BATCH = (128, 64, 64)


@dataclass(frozen=True)
class Call:
    """``function(*inputs)``; every floating input wants a gradient, unless it is made by ``fixed``."""

    op: str
    function: Callable[..., Any]
    inputs: tuple[Make, ...]

    def arguments(self) -> tuple[list[torch.Tensor], list[bool]]:
        """The tensors, the same at every call, and which of them want a gradient."""
        torch.manual_seed(0)
        data = [make() for make in self.inputs]
        wanted = [
            not isinstance(make, Fixed) and (d.is_floating_point() or d.is_complex())
            for make, d in zip(self.inputs, data, strict=True)
        ]
        return data, wanted


@dataclass(frozen=True)
class Fixed:
    """An input that wants no gradient: a target, a mask."""

    make: Make

    def __call__(self) -> torch.Tensor:
        return self.make()


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Make:
    """Standard normal numbers."""
    return lambda: torch.randn(shape, dtype=dtype)


def uniform(*shape: int, low: float = 0.1, high: float = 0.9) -> Make:
    """Numbers between ``low`` and ``high``."""
    return lambda: torch.rand(shape) * (high - low) + low


def integers(high: int, *shape: int) -> Make:
    """Integers from 0 to below ``high``: indices, classes."""
    return lambda: torch.randint(high, shape)


def mask(*shape: int) -> Make:
    """Bools, True for one half."""
    return lambda: torch.rand(shape) < 0.5


def positive_definite(*shape: int) -> Make:
    """Symmetric positive definite matrices ``(*, n, n)``."""

    def make() -> torch.Tensor:
        a = torch.randn(shape)
        return a @ a.mT / shape[-1] + torch.eye(shape[-1])

    return make


def well_conditioned(*shape: int) -> Make:
    """Matrices ``(*, m, n)`` that are far from singular."""
    return lambda: torch.randn(shape) / shape[-1] ** 0.5 + 2 * torch.eye(shape[-2], shape[-1])


def fixed(make: Make) -> Fixed:
    """The same tensors as an input that wants no gradient."""
    return Fixed(make)


def make_calls(table: dict[str, tuple[Any, ...]]) -> Iterator[Call]:
    """The calls of a table of ``op: (function, input, …)``."""
    for op, (function, *inputs) in table.items():
        yield Call(op, function, tuple(inputs))
