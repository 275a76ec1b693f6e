"""What a step does beside calls of torch's: refused, or told of once, since its graph does not do it."""

from __future__ import annotations

import io
import logging
import os
import pathlib
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer

logger = logging.getLogger("a step of a test")


class Stream(io.TextIOBase):
    """What prints go to, written in Python, as in notebooks: its state is no part of a step."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)


def warning_once(text: str) -> None:
    logger.warning(text)


TOLD: dict[str, tuple[Callable[[], Any], str]] = {
    "print": (lambda: print("a line"), "prints"),
    "print to a stream": (lambda: print("a line", file=sys.stderr), "prints"),
    "write": (lambda: sys.stdout.write("a line"), "writes to a stream"),
    "log": (lambda: logger.warning("a line"), "logs"),
    "save": (lambda: torch.save({}, os.devnull), "saves a file"),
}


def compiled_with(act: Callable[[], Any]) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        act()
        return x * 2

    return tracer.compile(step, backend="replay")


@pytest.mark.parametrize("name", TOLD)
def test_what_only_a_capture_does_is_told_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    act, what = TOLD[name]
    monkeypatch.setattr(sys, "stdout", Stream())
    compiled = compiled_with(act)
    with pytest.warns(
        UserWarning, match=rf"step {what}, at .*test_observed\.py:\d+: that happens while it is captured"
    ):
        compiled(torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(3))
        compiled(torch.ones(4))


def test_what_is_logged_once_is_not_told_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled_with(lambda: warning_once("a line"))(torch.ones(3))


buffer = io.StringIO()
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a file's existence": (lambda: os.path.exists("x"), "asks about files"),
    "a path's existence": (lambda: pathlib.Path("x").exists(), "asks about files"),
    "a directory": (lambda: os.listdir("."), "asks about files"),
    "a generator without a seed": (lambda: random.Random().random(), "draws random numbers from the operating system"),
    "a stream that is written": (lambda: buffer.write("a line"), "buffer, a file, is reached"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_from_call_to_call_is_refused(name: str) -> None:
    act, message = REFUSED[name]
    with pytest.raises(tracer.CaptureError, match=message) as raised:
        compiled_with(act)(torch.ones(3))
    assert "test_observed.py" in str(raised.value) or "buffer" in message
    assert not buffer.getvalue()


def test_a_generator_with_a_seed_gives_what_it_gives_eagerly() -> None:
    compiled = tracer.compile(lambda x: x * random.Random(3).random(), backend="replay")
    for _ in range(2):
        assert compiled(torch.ones(())) == torch.tensor(random.Random(3).random())
