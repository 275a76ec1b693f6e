"""The command line of checks that run over the operator database in this process."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Found = TypeVar("Found")


def run_over_operators(
    name: str,
    about: str,
    samples: int,
    check: Callable[[str, int], Found],
    report: Callable[[Found], int],
    arguments: Sequence[str] | None,
) -> int:
    """``python -m name --ops REGEX --samples N``, on one thread and without warnings; returns what ``report`` says of what was found.

    ``samples``: at most so many an operator, where no number is given.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=about.splitlines()[0])
    parser.add_argument("--ops", default="", help="only operators in whose name this expression finds a match")
    parser.add_argument("--samples", type=int, default=samples, help="at most so many samples an operator")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return report(check(options.ops, options.samples))
