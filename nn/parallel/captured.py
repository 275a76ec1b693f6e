"""A wrapper in a step that is captured (``tracer.compile``): its exchange is noted, and done when the graph has run."""

from __future__ import annotations

import functools
from typing import Any

import torch

from nn.parallel.faults import began_outside, recorded_pass
from nn.parallel.passes import Passes
from tracer.backprop.progress import Progress
from tracer.compiled.around import Around


class CapturedExchange:
    """Takes gradients without values in the place of an exchange, and notes when which of them came."""

    def __init__(self, exchange: Any, around: Around) -> None:
        self.passes = Passes()
        #: Whether a forward pass in this step has been the last to be exchanged: then the next sends the buffers.
        self.sends_buffers = False
        self._exchange = exchange
        self._around = around
        self._open = False
        self._numbers: list[int] = []
        self._gradients: list[torch.Tensor | None] = []
        self._absent: set[int] = set()

    def take(self, sweep: Progress, tensor: torch.Tensor, buffer: list[Any]) -> bool:
        """Take the gradient of a parameter, if this pass is one that exchanges them."""
        exchange = self._exchange
        number = exchange.number_of(tensor)
        name = exchange.names[number]
        if not (self._open or self.passes.exchanges(name)):
            if exchange.passes.waiting:
                raise began_outside(name)
            return False
        if sweep.create_graph:
            raise recorded_pass(name)
        if not self._open:
            self._open = True
            self._absent = exchange.absent_in(sweep)
            self._numbers, self._gradients = [], []
        self._numbers.append(number)
        self._gradients.append(buffer.pop() if buffer else None)
        return True

    def settle(self, outermost: bool) -> bool:
        """Have what was taken handed over."""
        if self._open and not outermost:
            return False
        if self._open:
            give = functools.partial(self._exchange.run_again, self._numbers, self._absent)
            self._around.hand_over(give, self._exchange.parameters, self._gradients)
            self._open = False
            self.passes.closed()
        return True

    def abandon(self) -> None:
        """The pass has failed, and with it the capture."""


def captured_exchange(exchange: Any, around: Around) -> CapturedExchange:
    """What stands for ``exchange`` in this capture."""
    found: CapturedExchange | None = around.notes.get(exchange)
    if found is None:
        found = around.notes[exchange] = CapturedExchange(exchange, around)
    return found
