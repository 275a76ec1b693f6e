"""Tensors that are not dense, of which a graph knows nothing but the shape, or have none yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ops_registry.torch_private import TorchDispatchMode
from tracer.compiled.telling import users_line
from tracer.errors import CaptureError


class DenseAlone(TorchDispatchMode):
    """Refuses each call of the step that makes a sparse, a nested or another tensor that is no dense one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not _is_dense(result):
            raise CaptureError(
                f"{func} makes a tensor that is not dense ({_kind(result)}), {users_line()}: how many elements it has would depend on "
                f"values, and a graph holds dense tensors alone. Keep that part out of the step, or use dense tensors there (a mask in "
                f"place of a sparse tensor, padding in place of a nested one)."
            )
        return result


def check_layouts(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Raise ``CaptureError`` for a tensor among those that a step reaches or is given that is not dense, or has no shape yet."""
    for tensor, name in zip(tensors, names, strict=True):
        if is_lazy(tensor):
            raise CaptureError(
                f"{name} is a parameter or buffer of a lazy module, without a shape until its first call: call the module once before the "
                f"compiled step."
            )
        if not _is_dense(tensor):
            raise CaptureError(
                f"{name} is a tensor that is not dense ({_kind(tensor)}): a captured step takes dense ones. Convert it (to_dense(), "
                f"to_padded_tensor(), dequantize()), or run the step eagerly."
            )


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _kind(tensor: torch.Tensor) -> str:
    return "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)
