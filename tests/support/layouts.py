"""Tensors that lie otherwise in memory."""

from __future__ import annotations

from support.checking import Make


def transposed(make: Make) -> Make:
    """The same tensor with its last two axes swapped in memory: not contiguous."""
    return lambda device: make(device).mT.contiguous().mT
