"""A sample: arguments to check a rule with, by the names of the rule's signature; and how they are laid out in a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.binding import Spelling, gather_varargs
from ops_registry.signatures import NUMPY_NAMES
from ops_registry.torch_private import tree_map


@dataclass(frozen=True)
class Sample:
    """Arguments of one call, by the names of the rule's signature; those left out take their defaults."""

    values: dict[str, Any]
    #: ``"given"``, ``"derived"``, ``"database"`` or ``"table"``.
    source: str

    def __str__(self) -> str:
        return ", ".join(f"{name}={tree_map(_shown, value)}" for name, value in self.values.items())


class _Text(str):
    """Text that shows without quotation marks inside a list."""

    def __repr__(self) -> str:
        return str(self)


def _shown(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    layout = "" if value.is_contiguous() else f", strides {list(value.stride())}"
    return _Text(f"{str(value.dtype)[6:]}{list(value.shape)}{layout}")


def named(spelling: Spelling, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a call gives, by the names of the rule's signature."""
    if spelling.varargs:
        args = gather_varargs(args)
    values = dict(zip(spelling.order, args, strict=False))
    for name, value in kwargs.items():
        values[_known_name(spelling, name)] = value
    return values


def _known_name(spelling: Spelling, name: str) -> str:
    """The signature's name for a keyword: NumPy's ``axis`` is ``dim``."""
    if name == "self":
        return "input"
    return name if name in spelling.rule.signature.names else NUMPY_NAMES.get(name, name)


def arranged(spelling: Spelling, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in one spelling: by position as far as they go, then by name."""
    left = dict(values)
    args = []
    keyword_only = spelling.rule.signature.keyword_only
    for name in spelling.order:
        if name not in left or name in keyword_only:
            break
        args.append(left.pop(name))
    return tuple(args), left
