"""An op of our own on strided memory: the out-of-place form of a write through a view, which torch has without a right derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function


def write_region(
    input: torch.Tensor, value: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int
) -> Any:
    """``input``, which is dense, with ``value`` in the part of its memory that a view of this geometry shows.

    An in-place write through a view does this to the tensor whose memory the view shares.
    """
    if has_torch_function((input, value)):
        return handle_torch_function(write_region, (input, value), input, value, size, stride, storage_offset)
    return torch.as_strided_scatter(input, value, size, stride, storage_offset)
