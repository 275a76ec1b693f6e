"""Running the body of a Python-level torch function with interception on, so that its parts are recorded."""

from __future__ import annotations

import functools
import types as python_types
from collections.abc import Callable
from typing import Any

from ops_registry.torch_private import skip_one_hop

_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def redispatch(func: Callable[..., Any], types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``func`` past its own check for subclasses; every torch call in its body is intercepted as usual."""
    if skip_one_hop is not None:
        return skip_one_hop(func, types, args, kwargs)
    return unchecked(func)(*args, **kwargs)


@functools.cache
def unchecked(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func`` with its checks for subclasses answering no. For torch before 2.13, which has no ``redispatch_function``."""
    if not isinstance(func, python_types.FunctionType):
        return func
    closure = func.__closure__
    if closure and not set(_CHECKS) & set(func.__code__.co_names):
        # A dispatcher over functions that check (F.max_pool2d chooses between two by return_indices).
        closure = tuple(python_types.CellType(unchecked(c.cell_contents)) if _is_function(c) else c for c in closure)
    names = {**func.__globals__, **{check: _never for check in _CHECKS if check in func.__globals__}}
    copy = python_types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, closure)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _is_function(cell: python_types.CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, python_types.FunctionType)
    except ValueError:  # not filled yet
        return False


def _never(*_: Any) -> bool:
    return False
