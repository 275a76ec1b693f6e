"""``torch.DisableTorchFunctionSubclass`` and ``torch.DisableTorchFunction``, which turn interception off for a block.

torch's autograd goes on recording there, so ours has to: modes are still asked where subclasses are not, and one here hands the calls on
tracked tensors to their class. All other calls run as torch's own guard has it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    EnableTorchFunction,
    NativeDisableTorchFunction,
    is_torch_function_enabled,
)
from tracer.tracked_tensor import Tensor


class _Guard(TorchFunctionMode):
    """Turns interception off for a block, but for tracked tensors."""

    #: torch's own guard.
    native: Any

    def __enter__(self) -> Any:
        self._off = DisableTorchFunctionSubclass()
        self._off.__enter__()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._off.__exit__(kind, error, traceback)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_torch_function_enabled() and _has_tracked((args, kwargs)):
            with EnableTorchFunction():
                return Tensor.__torch_function__(func, (Tensor,), args, kwargs)
        if is_torch_function_enabled():  # turned on again inside the block
            return func(*args, **kwargs)
        with self.native():
            return func(*args, **kwargs)


class DisabledForSubclasses(_Guard):
    """``torch.DisableTorchFunctionSubclass``."""

    native = DisableTorchFunctionSubclass


class Disabled(_Guard):
    """``torch.DisableTorchFunction``: the user's modes are not asked either."""

    native = NativeDisableTorchFunction


def _has_tracked(nest: Any) -> bool:
    if isinstance(nest, torch.Tensor):
        return type(nest) is Tensor
    if isinstance(nest, dict):
        nest = tuple(nest.values())
    return isinstance(nest, tuple | list) and any(map(_has_tracked, nest))
