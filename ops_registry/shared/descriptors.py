"""What a tensor is like, asked of torch's own descriptors: for where interception is off already.

Our properties of a tracked tensor would turn it off once more, at four times the price.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ops_registry.torch_private import TensorBase

_BASE: Any = TensorBase
shape_of: Callable[[torch.Tensor], torch.Size] = _BASE.shape.__get__
dtype_of: Callable[[torch.Tensor], torch.dtype] = _BASE.dtype.__get__
device_of: Callable[[torch.Tensor], torch.device] = _BASE.device.__get__
layout_of: Callable[[torch.Tensor], torch.layout] = _BASE.layout.__get__
stride_of: Callable[[torch.Tensor], tuple[int, ...]] = _BASE.stride
offset_of: Callable[[torch.Tensor], int] = _BASE.storage_offset
dim_of: Callable[[torch.Tensor], int] = _BASE.dim
is_contiguous: Callable[[torch.Tensor], bool] = _BASE.is_contiguous
is_complex: Callable[[torch.Tensor], bool] = _BASE.is_complex
is_nested: Callable[[torch.Tensor], bool] = _BASE.is_nested.__get__
is_conj: Callable[[torch.Tensor], bool] = _BASE.is_conj
is_neg: Callable[[torch.Tensor], bool] = _BASE.is_neg
