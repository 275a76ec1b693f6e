"""The forward of a custom Function for a whole batch, by the Function's own ``vmap`` method where it has one."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    VmapInfo,
    add_batch_dim,
    batch_dim_of,
    batch_level_of,
    is_batched,
    randomness_of_level,
    unwrapped,
)
from tracer.errors import FunctionError
from tracer.recording.levels import levels
from tracer.tracked_tensor import plain_alias


def forward_of_batch(cls: Any, args: tuple[Any, ...]) -> Any:
    """The results of ``cls.forward`` inside a level of ``torch.vmap``.

    Without a ``vmap`` method of its own a Function runs on the batch as it is, as any function does. Raises ``FunctionError`` for a
    ``vmap`` method that does not return the results and their batch dimensions.
    """
    level = levels.open[-1]
    batch = [_batch_of(a, level.number) for a in args]
    if cls.vmap is torch.autograd.Function.vmap or all(dim is None for _, dim in batch):
        return cls.forward(*args)
    info = VmapInfo(level.batch_size, randomness_of_level())
    returned = cls.vmap(info, tuple([dim for _, dim in batch]), *[value for value, _ in batch])
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise FunctionError(
            f"vmap of the Function {cls.__qualname__} has to return a tuple (results, batch dimensions), and it returned "
            f"{type(returned).__name__}"
        )
    results, dims = returned
    if not isinstance(results, tuple):
        return _wrapped(results, dims, level.number)
    dims = dims if isinstance(dims, tuple) else (dims,) * len(results)
    return tuple([_wrapped(r, d, level.number) for r, d in zip(results, dims, strict=True)])


def _batch_of(value: Any, number: int) -> tuple[Any, int | None]:
    """An argument as its whole batch, and the dimension of the batch; None for one that is the same for all."""
    if not isinstance(value, torch.Tensor):
        return value, None
    with DisableTorchFunctionSubclass():
        plain = plain_alias(value)
    if not is_batched(plain) or batch_level_of(plain) != number:
        return plain, None
    return unwrapped(plain), batch_dim_of(plain)


def _wrapped(result: Any, dim: int | None, number: int) -> Any:
    return result if dim is None or not isinstance(result, torch.Tensor) else add_batch_dim(result, dim, number)
