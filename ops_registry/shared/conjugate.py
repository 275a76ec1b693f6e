"""The conjugate of tensors and numbers, which stands in most formulas."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.shared.descriptors import is_complex
from ops_registry.torch_private import DisableTorchFunctionSubclass


def conj(value: Any) -> Any:
    """The complex conjugate of a tensor or a number; real ones, and what is neither, are returned as they are."""
    if type(value) is torch.Tensor:
        return value.conj() if value.is_complex() else value
    if isinstance(value, torch.Tensor):
        with DisableTorchFunctionSubclass():  # to have the question intercepted would cost as much as an op
            has_imaginary_part = is_complex(value)
        return value.conj() if has_imaginary_part else value
    return value.conjugate() if isinstance(value, complex) else value


def scaled(grad: torch.Tensor, factor: Any) -> torch.Tensor:
    """``grad`` times the conjugate of the number ``factor``."""
    return grad if factor == 1 else grad * conj(factor)
