"""Claim: each fast lane is worth its lines.

A chain of mul, add, tanh on 4 elements, forward and backward, with the fast lane of calls and that of sweeps switched off in turn.
Processor time, single-threaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from interleaved import compare, report

import tracer
from ops_registry.registry import TABLE
from tracer.backprop.sweep import Sweep

CHAIN = 100
FAST = [spelling for spelling in TABLE.values() if spelling.fast]


def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> None:
    """One forward and backward pass of the chain."""
    h = x
    for _ in range(CHAIN):
        h = (h * w + b).tanh()
    h.sum().backward()
    x.grad = w.grad = b.grad = None


def in_lanes(run: Callable[[], None], calls: bool, sweeps: bool) -> Callable[[], None]:
    """``run`` with the fast lanes on or off; the switching is part of the time, a few percent of it."""

    def switched() -> None:
        for spelling in FAST:
            spelling.fast = calls
        Sweep.fast = sweeps
        for _ in range(20):
            run()
        for spelling in FAST:
            spelling.fast = True
        Sweep.fast = True

    return switched


if __name__ == "__main__":
    torch.set_num_threads(1)
    leaves = [tracer.tensor(torch.rand(4), requires_grad=True) for _ in range(3)]

    def run() -> None:
        step(*leaves)

    contestants = {
        "both fast": in_lanes(run, True, True),
        "calls general": in_lanes(run, False, True),
        "sweeps general": in_lanes(run, True, False),
        "both general": in_lanes(run, False, False),
    }
    report("300 calls, forward and backward, 20 times", compare(contestants, 40, 1, time.process_time), 1e-3, "ms")
