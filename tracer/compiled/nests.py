"""What a step returns, or is given, as a flat list: tensors and other values in tuples, lists, dictionaries, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch

from ops_registry.torch_private import tree_flatten, tree_unflatten
from tracer.errors import CaptureError

Rebuild = Callable[[Sequence[Any]], Any]


def flatten(value: Any) -> tuple[list[Any], Rebuild]:
    """The leaves of a nest, and what makes the nest again of others."""
    if isinstance(value, torch.Tensor):
        return [value], _only
    leaves, spec = tree_flatten(value, _is_shape)
    if not any(map(_is_record, leaves)):
        return leaves, lambda others: tree_unflatten(others, spec)
    parts = [_flatten_record(leaf) if _is_record(leaf) else ([leaf], _only) for leaf in leaves]

    def rebuild(others: Sequence[Any]) -> Any:
        rest: Iterator[Any] = iter(others)
        return tree_unflatten([make([next(rest) for _ in found]) for found, make in parts], spec)

    return [leaf for found, _ in parts for leaf in found], rebuild


def _is_shape(value: Any) -> bool:
    return isinstance(value, torch.Size)  # torch takes it for a tuple


def _only(others: Sequence[Any]) -> Any:
    return others[0]


def types_of_keys(nest: Any) -> tuple[type, ...]:
    """Of each key in a nest that is no string, the type: 1, 1.0 and True are equal as keys."""
    if isinstance(nest, dict):
        types = [type(key) for key in nest if type(key) is not str]
        return (*types, *(kind for value in nest.values() for kind in types_of_keys(value)))
    if isinstance(nest, list | tuple):
        return tuple([kind for value in nest for kind in types_of_keys(value)])
    return ()


@contextmanager
def kept_as_they_were(nest: Any) -> Iterator[None]:
    """Raise ``CaptureError`` where the block changes a list or a dictionary in ``nest``; it is put back then."""
    copies = [(held, held.copy()) for held in _containers(nest) if not isinstance(held, tuple)]
    try:
        yield
    finally:
        changed = [held for held, copied in copies if not _holds(held, copied)]
        for held, copied in copies:
            if any(held is other for other in changed):
                held.clear()
                (held.update if isinstance(held, dict) else held.extend)(copied)
    if changed:
        raise CaptureError(
            f"the step changes a {type(changed[0]).__qualname__} among its arguments, and a graph would not. Let it work on a copy "
            f"(x.copy()), or do it outside of the step."
        )


def ids_in(nest: Any) -> frozenset[int]:
    """The ids of all containers in a nest, and of the tensors in them."""
    parts = list[Any]()
    leaves = tree_flatten(nest, lambda part: parts.append(part))[0]  # asked of each part; None is no
    others = {id(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)}
    return frozenset(map(id, parts)) - others


def _containers(nest: Any) -> Iterator[Any]:
    if isinstance(nest, dict | list | tuple | deque):
        yield nest
        for value in _values(nest):
            yield from _containers(value)


def _values(held: Any) -> Iterable[Any]:
    return held.values() if isinstance(held, dict) else held


def _holds(held: Any, copied: Any) -> bool:
    if isinstance(held, dict):
        return list(held) == list(copied) and all(map(is_, held.values(), copied.values()))
    return len(held) == len(copied) and all(map(is_, held, copied))


def _is_record(value: Any) -> bool:
    return _is_shape(value) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _flatten_record(record: Any) -> tuple[list[Any], Rebuild]:
    if _is_shape(record):  # its sizes may be symbolic
        return list(record), torch.Size
    names = [field.name for field in dataclasses.fields(record)]
    leaves, rebuild_fields = flatten([getattr(record, name) for name in names])

    def rebuild(others: Sequence[Any]) -> Any:
        twin = copy.copy(record)
        for name, value in zip(names, rebuild_fields(others), strict=True):
            object.__setattr__(twin, name, value)  # a frozen one has no setter
        return twin

    return leaves, rebuild
