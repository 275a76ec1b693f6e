"""Indices that stay as they were when they were used."""

import operator
from typing import Any

import torch

from ops_registry.torch_private import is_batched

_FIXED = (int, type(None))


def frozen(index: Any) -> Any:
    """``index`` as it reads now, whatever happens afterwards to the lists, arrays and counters in it."""
    kind = type(index)
    if kind is int or (kind is torch.Tensor and index.dtype is torch.bool):
        return index
    if kind is tuple:
        for item in index:
            if not _is_fixed(item):
                break
        else:
            return index
    if isinstance(index, list) and len(index) < 32 and any(_makes_tuple(i) for i in index):
        index = tuple(index)  # as torch reads it
    if isinstance(index, tuple):
        return tuple([_frozen_item(i) for i in index])
    return _frozen_item(index)


def _is_fixed(item: Any) -> bool:
    """Whether ``item`` of an index is a number or a slice of numbers, which nothing can change."""
    kind = type(item)
    if kind is slice:
        return type(item.start) in _FIXED and type(item.stop) in _FIXED and type(item.step) in _FIXED
    return kind in _FIXED or item is Ellipsis


def _makes_tuple(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice | torch.Tensor) or hasattr(item, "__len__")


def _frozen_item(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, int):
        return item
    if isinstance(item, slice):
        return slice(*[b if b is None else whole(b) for b in (item.start, item.stop, item.step)])
    if isinstance(item, torch.Tensor):
        if item.dtype is torch.uint8:
            return item.bool()  # the old kind of mask
        # Inside torch.vmap it stands for an index each.
        return int(item) if item.dim() == 0 and item.dtype is not torch.bool and not is_batched(item) else item
    if hasattr(item, "__len__"):
        made = torch.tensor(item)
        return _frozen_item(made if made.numel() else made.long())
    return whole(item)


def whole(number: Any) -> Any:
    """A whole number, where one of NumPy's or a tensor's was given too; a symbolic size stays one, to ask for its number would fix it."""
    return number if isinstance(number, torch.SymInt) else operator.index(number)
