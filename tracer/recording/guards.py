"""``torch.DisableTorchFunctionSubclass`` and ``torch.DisableTorchFunction``, which turn interception off for a block.

torch's autograd goes on recording there, so ours has to: modes are still asked where subclasses are not, and one here hands the calls on
tracked tensors to their class. All other calls run as torch's own guard has it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    NativeDisableTorchFunction,
)
from tracer.node import tensors_in
from tracer.recording.subclasses import RecordedAllTheSame
from tracer.tracked_tensor import Tensor


class _Guard(RecordedAllTheSame):
    """Turns interception off for a block, but for tracked tensors."""

    def __enter__(self) -> Any:
        self._off = DisableTorchFunctionSubclass()
        self._off.__enter__()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._off.__exit__(kind, error, traceback)

    def concerns(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        # Tracked tensors that want no gradient too: they stay tracked.
        return any(type(tensor) is Tensor for tensor in tensors_in((*args, *kwargs.values())))


class DisabledForSubclasses(_Guard):
    """``torch.DisableTorchFunctionSubclass``."""


class Disabled(_Guard):
    """``torch.DisableTorchFunction``: the user's modes are not asked either."""

    native = NativeDisableTorchFunction
