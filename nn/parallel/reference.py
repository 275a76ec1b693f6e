"""What a leaf knows of who takes its gradient."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from nn.parallel.captured import captured_exchange
from nn.parallel.faults import wrapper_is_gone
from nn.parallel.passes import Passes
from tracer.backprop.progress import Progress
from tracer.compiled.around import capture_in_progress


class Reference:
    """Gives the exchange that takes the gradient: known weakly, so that a wrapper that nobody holds is gone."""

    __slots__ = ("_exchange", "_passes")

    def __init__(self, exchange: Any) -> None:
        self._exchange = weakref.ref(exchange)
        self._passes: Passes = exchange.passes

    def __call__(self) -> Any:
        exchange = self._exchange()
        if exchange is None:
            return _Gone(self._passes) if self._passes.waiting else None
        around = capture_in_progress()
        return exchange if around is None else captured_exchange(exchange, around)


class _Gone:
    """In the place of an exchange whose wrapper is gone after a forward pass."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def take(self, sweep: Progress, tensor: torch.Tensor, buffer: list[Any]) -> bool:
        """Raise where the gradients of that forward pass come."""
        if self._passes.are_gone_through():
            raise wrapper_is_gone()
        return False

    def settle(self, outermost: bool) -> bool:
        """Nothing was taken."""
        return True

    def abandon(self) -> None:
        """Nothing was taken."""
