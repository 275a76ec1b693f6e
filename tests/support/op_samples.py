"""Samples of torch's operators for tests that go through all of them."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import numpy as np
import torch

from tracer.checks.conformance.operators import OP_DB, Sample, applies, load_ops

DEVICE = "cpu"


def operators(pattern: str = "") -> dict[str, Any]:
    """torch's operators that have a derivative in float64, by name."""
    found = load_ops(OP_DB)
    return {n: op for n, op in found.items() if applies(op, "float64", 1, DEVICE) and re.search(pattern, n)}


def seed() -> None:
    """The random state before a call. (``torch.manual_seed`` formats the stack for devices that are not there: in a test that is slow.)"""
    torch.default_generator.manual_seed(0)


def samples_of(op: Any, count: int | None, dtype: torch.dtype = torch.float64) -> list[Sample]:
    """The first samples of an operator, all of them where ``count`` is None; none where torch cannot make them."""
    seed()
    random.seed(0)
    np.random.seed(0)
    try:
        # Not ``op.sample_inputs``, which looks for a test case of torch's on the stack, sample by sample.
        made = op.sample_inputs_func(op, DEVICE, dtype, True)
        return [Sample.of(s) for s in itertools.islice(made, count)]
    except Exception:
        return []
