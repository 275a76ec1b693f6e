"""What a step returns, or is given, as a flat list: tensors and other values in tuples, lists, dictionaries, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ops_registry.torch_private import tree_flatten, tree_unflatten

Rebuild = Callable[[Sequence[Any]], Any]


def flatten(value: Any) -> tuple[list[Any], Rebuild]:
    """The leaves of a nest, and what makes the nest again of others."""
    if isinstance(value, torch.Tensor):
        return [value], _only
    leaves, spec = tree_flatten(value)
    if not any(map(_is_record, leaves)):
        return leaves, lambda others: tree_unflatten(others, spec)
    parts = [_flatten_record(leaf) if _is_record(leaf) else ([leaf], _only) for leaf in leaves]

    def rebuild(others: Sequence[Any]) -> Any:
        rest: Iterator[Any] = iter(others)
        return tree_unflatten([make([next(rest) for _ in found]) for found, make in parts], spec)

    return [leaf for found, _ in parts for leaf in found], rebuild


def _only(others: Sequence[Any]) -> Any:
    return others[0]


def _is_record(value: Any) -> bool:
    return isinstance(value, torch.Size) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _flatten_record(record: Any) -> tuple[list[Any], Rebuild]:
    if isinstance(record, torch.Size):  # its sizes may be symbolic
        return list(record), torch.Size
    names = [field.name for field in dataclasses.fields(record)]
    leaves, rebuild_fields = flatten([getattr(record, name) for name in names])

    def rebuild(others: Sequence[Any]) -> Any:
        twin = copy.copy(record)
        for name, value in zip(names, rebuild_fields(others), strict=True):
            object.__setattr__(twin, name, value)  # a frozen one has no setter
        return twin

    return leaves, rebuild
