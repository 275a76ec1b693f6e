"""Lists of operators with sample inputs: torch's own, which its test suite is built on, or another that is named."""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

#: The random state in which torch's test suite makes each sample.
SEED = 1234

OP_DB = "torch.testing._internal.common_methods_invocations:op_db"


@cache
def listed_ops(source: str = OP_DB) -> tuple[Any, ...]:
    """The operators of the list ``module:attribute``. Raises ``ImportError`` where what torch's own needs is not installed."""
    module, _, attribute = source.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(getattr(importlib.import_module(module), attribute))


def samples_of(
    op: Any, device: str, dtype: torch.dtype, requires_grad: bool = False, seed: int = SEED
) -> Iterator[Any]:
    """The samples of an operator, the ones that ``op.sample_inputs`` gives; raises what torch raises where it cannot make them.

    Not by that method, which looks for a test case of torch's on the stack, sample by sample.
    """
    samples = iter(op.sample_inputs_func(op, device, dtype, requires_grad))
    while True:
        _seed(device, seed)
        try:
            yield next(samples)
        except StopIteration:
            return


def _seed(device: str, seed: int) -> None:
    import numpy as np  # not needed by this package, and there wherever the database is

    random.seed(seed)
    np.random.seed(seed)
    if device == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed formats the stack for devices that are not there
    else:
        torch.manual_seed(seed)
