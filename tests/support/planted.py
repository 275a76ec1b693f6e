"""Faults to be planted: programs in each of which the first of two leaves, or what is returned, has no right gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

T = torch.Tensor


@dataclass(frozen=True)
class Fault:
    """A program with one fault, on the line that is marked FAULT."""

    cause: str
    op: str
    #: Given two leaves of three positive elements, returns the loss, for the verdict on the first; or what to ask about, and the loss.
    program: Callable[[T, T], Any]
    #: What the advice has to say.
    advice: str = ""

    @property
    def line(self) -> str | None:
        """``file.py:12`` of the marked line, if there is one."""
        lines, first = inspect.getsourcelines(self.program)
        file = (inspect.getsourcefile(self.program) or "").rpartition("/")[2]
        return next((f"{file}:{first + i}" for i, text in enumerate(lines) if text.endswith("# FAULT\n")), None)


FAULTS: dict[str, Fault] = {}


def fault(cause: str, op: str, advice: str = "") -> Callable[[Callable[[T, T], Any]], Callable[[T, T], Any]]:
    """Enter a program, with the verdict and the op that are to be told of it, and a part of the advice."""

    def enter(program: Callable[[T, T], Any]) -> Callable[[T, T], Any]:
        assert program.__name__ not in FAULTS
        FAULTS[program.__name__] = Fault(cause, op, program, advice)
        return program

    return enter
