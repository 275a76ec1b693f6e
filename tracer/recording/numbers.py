"""Constructors that take numbers: a tensor that requires grad is none to torch, which raises, and a tracked one would be read as one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tracer.errors import UnsupportedError
from tracer.tracked_tensor import Tensor

#: What each is an attribute of, its name, and how many arguments, which are tensors or sizes, stand before the numbers.
NUMBER_CONSTRUCTORS: tuple[tuple[Any, str, int], ...] = (
    (torch, "full", 1),
    (torch, "arange", 0),
    (torch, "range", 0),
    (torch, "scalar_tensor", 0),
    (torch.Tensor, "new_full", 2),
)


def refusing_numbers(make: Callable[..., Any], before: int) -> Callable[..., Any]:
    """A constructor that raises ``UnsupportedError`` where a tracked tensor that requires grad stands in the place of a number."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        numbers = args[before:]
        if kwargs:
            numbers += tuple([value for name, value in kwargs.items() if name != "out"])
        for value in numbers:
            if type(value) is Tensor and value._node is not None:
                raise UnsupportedError(
                    f"{make.__name__}() takes a number where it was given a tracked tensor of shape {tuple(value.shape)} that "
                    f"requires grad, and would lose its gradient. Use value.expand(size), or a sum with torch.zeros(size); pass "
                    f"value.item() where no gradient is wanted."
                )
        return make(*args, **kwargs)

    return made
