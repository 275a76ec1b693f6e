"""Which values a walk takes as they are, and which lead on to more."""

from __future__ import annotations

import array
import ctypes
import functools
import types
from collections import deque
from typing import Any

import torch

from tracer.compiled.whose import is_closed, is_engines

#: Values that are equal where they are the same.
SIMPLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout,
     range, slice, type(Ellipsis)}
)  # fmt: skip
DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
)
#: Memory outside of Python's objects, compared by value at each call.
MEMORY = (array.array, bytearray, ctypes.Array, ctypes.Structure, ctypes._SimpleCData)
#: The most bytes of such memory that a call looks at.
BYTES = 1 << 16
#: What torch runs around every module, whichever it is.
GLOBAL_HOOKS = [
    held
    for name, held in vars(torch.nn.modules.module).items()
    if name.startswith(("_global_forward", "_global_backward")) and isinstance(held, dict)
]


def slots(value: Any) -> frozenset[str]:
    """The attributes of an object that lie in no dictionary."""
    return _slots_of(type(value))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: type) -> frozenset[str]:
    if is_closed(kind):
        return frozenset()
    everything = (item for part in kind.__mro__ for item in vars(part).items())
    return frozenset(name for name, value in everything if isinstance(value, types.MemberDescriptorType))


def is_followed(value: Any) -> bool:
    """Whether an attribute of a module of a library, or of the standard library, holds more than itself."""
    if isinstance(value, torch.Tensor | torch.nn.Module | dict | list | set | deque):
        return True
    kind = type(value)
    return (
        kind in SIMPLE
        or isinstance(value, types.FunctionType | types.ModuleType | type)
        or not (kind.__module__ == "builtins" or is_engines(kind))
    )


def read_by_torch(value: Any) -> list[str]:
    """The attributes of an object of torch's that torch's own code reads when a step uses it.

    Of a gradient scaler, the scale; not what it notes of optimisers, which are new dictionaries at each step.
    """
    if not isinstance(value, torch.amp.GradScaler):
        return []
    return [name for name, held in vars(value).items() if not isinstance(held, dict)]
