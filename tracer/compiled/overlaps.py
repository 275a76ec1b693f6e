"""Whether tensors of one storage have elements in common; asked where something is written.

Of symbolic sizes the first ones tell: an answer about a symbol would be a condition of the graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tracer.recording.views import is_overlapping


class Place(NamedTuple):
    """Where in its storage a tensor lies, counted in elements, and the bytes of one."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size: int

    @property
    def overlaps_itself(self) -> bool:
        """Whether two indices may lead to one element (``expand``, ``unfold``)."""
        return is_overlapping(self.shape, self.stride)


def place_of(tensor: torch.Tensor) -> Place:
    """Called with interception off."""
    shape, stride = (tuple(map(_number, found)) for found in (tensor.shape, tensor.stride()))
    return Place(shape, stride, _number(tensor.storage_offset()), tensor.element_size())


def may_overlap(a: Place, b: Place) -> bool:
    """Whether two tensors of one storage may have an element in common.

    Not where one lies behind the other, nor where both are parts of other columns (``x[:, :2]`` and ``x[:, 2:]``).
    """
    if 0 in a.shape or 0 in b.shape or not _meet(_extent(a, 0), _extent(b, 0)):
        return False
    if a.size != b.size:
        return True
    return not any(_in_other_columns(a, b, width) for width in set(a.stride) & set(b.stride) if width > 1)


def _extent(place: Place, width: int) -> tuple[int, int]:
    """The bytes from the first element to the last, of those in one row of ``width`` elements where that is given."""
    strides = [pair for pair in zip(place.stride, place.shape, strict=True) if not 0 < width <= pair[0]]
    begin = place.offset % width if width else place.offset
    return begin * place.size, (begin + 1 + sum((n - 1) * stride for stride, n in strides)) * place.size


def _in_other_columns(a: Place, b: Place, width: int) -> bool:
    """Whether, in rows of ``width`` elements, each keeps to columns of its own."""
    if any(stride % width for stride in (*a.stride, *b.stride) if stride > width):
        return False
    row, other = _extent(a, width), _extent(b, width)
    return max(row[1], other[1]) <= width * a.size and not _meet(row, other)


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _number(size: Any) -> int:
    found: int = size if isinstance(size, int) else size.node.hint
    return found
