"""Whether tensors of one storage have elements in common; asked where something is written."""

from __future__ import annotations

import torch


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage may have an element in common.

    Not where one lies behind the other, nor where both are parts of other columns (``x[:, :2]`` and ``x[:, 2:]``).
    """
    if a.numel() == 0 or b.numel() == 0:
        return False
    if not _meet(_extent(a, 0), _extent(b, 0)):
        return False
    if a.element_size() != b.element_size():
        return True
    return not any(_in_other_columns(a, b, width) for width in set(a.stride()) & set(b.stride()) if width > 1)


def is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage show the same elements in the same order."""
    return (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())


def _extent(tensor: torch.Tensor, width: int) -> tuple[int, int]:
    """The bytes from the first element to the last, of those in one row of ``width`` elements where that is given."""
    begin, size = tensor.storage_offset(), tensor.element_size()
    strides = [(stride, n) for stride, n in zip(tensor.stride(), tensor.shape, strict=True) if not 0 < width <= stride]
    begin = begin % width if width else begin
    return begin * size, (begin + 1 + sum((n - 1) * stride for stride, n in strides)) * size


def _in_other_columns(a: torch.Tensor, b: torch.Tensor, width: int) -> bool:
    """Whether, in rows of ``width`` elements, each keeps to columns of its own."""
    if any(stride % width for tensor in (a, b) for stride in tensor.stride() if stride > width):
        return False
    row, other = _extent(a, width), _extent(b, width)
    end = width * a.element_size()
    return row[1] <= end and other[1] <= end and not _meet(row, other)


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
