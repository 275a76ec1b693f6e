"""Steps of optimisers that are one call for all tensors. Torch does not say what they give without running them; here it is said.

The learning rate of such a call is a tensor, so that it may be an input of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ops_registry.torch_private import DisableTorchFunctionSubclass, FakeTensorMode

_aten = torch.ops.aten
#: By the name of the call that writes in place, the op that gives its first lists of tensors back with other values.
_FUNCTIONAL: dict[str, Any] = {
    f"{name}_": getattr(_aten, name).tensor_lr
    for name in ("_fused_sgd", "_fused_adam", "_fused_adamw", "_fused_adagrad")
    if hasattr(_aten, name) and "tensor_lr" in getattr(_aten, name).overloads()
}
_OPS = frozenset(_FUNCTIONAL.values())


class WithFusedSteps(FakeTensorMode):
    """Tensors without values, which such an op takes and gives."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives, without values."""
        if func not in _OPS:
            return super().dispatch(func, types, args, kwargs)
        with self:
            return tuple([[torch.empty_like(t) for t in held] for held in args[: len(func._schema.returns)]])


class FusedSteps(TorchFunctionMode):
    """Sees the calls of a step, and makes those that write in place ops and copies of what they give."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        op = _FUNCTIONAL.get(getattr(func, "__name__", ""))
        if op is None:
            return func(*args, **(kwargs or {}))
        with DisableTorchFunctionSubclass():
            for tensors, values in zip(args, op(*args, **(kwargs or {})), strict=False):
                for tensor, value in zip(tensors, values, strict=True):
                    if tensors is not args[1]:  # gradients come back as they are
                        tensor.copy_(value)
        return None
