"""Which backward passes gradients are exchanged in: the next one after a forward pass, and those that go through its nodes once more."""

from __future__ import annotations

from nn.parallel.faults import comes_late
from tracer.backprop.progress import in_progress
from tracer.node import next_serial


class Passes:
    """The forward passes through a wrapper, and whether a backward pass is theirs."""

    __slots__ = ("_began", "_closed_in", "_span", "waiting")

    def __init__(self) -> None:
        #: A forward pass has been that wants its gradients exchanged.
        self.waiting = False
        self._began = 0
        #: The numbers of the nodes recorded from the first such pass to the latest.
        self._span = (0, 0)
        #: The number of the backward pass, the outermost of its thread, in which the latest exchange has ended.
        self._closed_in = -1

    def forward_begins(self) -> None:
        """A forward pass begins that wants its gradients exchanged."""
        self._began = next_serial()

    def forward_ends(self) -> None:
        """It has come through."""
        self._span = self._span[0] if self.waiting else self._began, next_serial()
        self.waiting = True

    def exchanges(self, name: str) -> bool:
        """Whether the gradient of the parameter ``name``, which has just come, begins an exchange."""
        if self.waiting:
            return True
        if in_progress()[0].task == self._closed_in:
            raise comes_late(name)
        return self.are_gone_through()

    def are_gone_through(self) -> bool:
        """Whether the backward pass goes through the latest forward passes."""
        first, last = self._span
        return any(first < node.serial < last for sweep in in_progress() for node in sweep.order)

    def closed(self) -> None:
        """The exchange is over."""
        self.waiting = False
        self._closed_in = in_progress()[0].task if in_progress() else -1
