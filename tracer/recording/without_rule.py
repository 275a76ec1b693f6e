"""Calls of functions that the registry does not know: answered by the tensor's class, run through their Python body, or without a rule."""

from __future__ import annotations

import threading
import types as python_types
from collections.abc import Callable
from typing import Any

import torch

from ops_registry.signatures import is_custom
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import UnsupportedError
from tracer.graph import enter
from tracer.naming import qualified
from tracer.node import Node
from tracer.recording.call import refuse_out
from tracer.recording.fallback import fallback_active, record_with_torch
from tracer.recording.inplace import check_write, is_in_place
from tracer.recording.library_ops import NO_BACKWARD, overload_of, run_library_op
from tracer.recording.missing_rule import MissingRule, name_of, record_write, written_arguments
from tracer.recording.parents import DIFFERENTIABLE, nodes_in
from tracer.recording.python_functions import redispatch
from tracer.recording.results import came_in, fresh_results, mark_all, mark_constant
from tracer.recording.subclasses import is_foreign
from tracer.tracked_tensor import HANDLERS


class _Running(threading.local):
    """Python-level functions whose body is running.

    Met again inside itself, a function is a call of its C counterpart: ``Tensor.unflatten`` calls ``super().unflatten``, which arrives
    under the same name.
    """

    def __init__(self) -> None:
        self.functions: set[Callable[..., Any]] = set()


_running = _Running()


def call_without_rule(
    func: Callable[..., Any], types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of a function that the registry does not know."""
    handler = HANDLERS.get(func)
    if handler is not None:
        return handler(*args, **kwargs)
    if isinstance(func, python_types.FunctionType) and func not in _running.functions:
        _running.functions.add(func)
        try:
            return redispatch(func, types, args, kwargs)
        finally:
            _running.functions.discard(func)
    overload = overload_of(func, args, kwargs)
    if overload is not None:
        result = run_library_op(func, overload, types, args, kwargs)
        if result is not NO_BACKWARD:
            return result
    with DisableTorchFunctionSubclass():
        nodes = nodes_in((args, kwargs)) if torch.is_grad_enabled() else []
        if nodes:
            return _record(func, overload, nodes, args, kwargs)
        result = func(*args, **kwargs)
        return result if args and is_in_place(func) else mark_constant(result, args, kwargs)


def _record(
    func: Callable[..., Any], overload: Any, nodes: list[Node], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call, with a node that raises in backward, or that asks torch where the user wants it."""
    written = written_arguments(func, overload, args, kwargs)
    if fallback_active() and not written and not is_custom(func):  # torch has no derivative of such an op either
        return record_with_torch(func, args, kwargs, name_of(func))
    refuse_out(qualified(func), kwargs)
    if written and overload is None and isinstance(args[0], tuple | list):
        raise UnsupportedError(
            f"{qualified(func)} writes into a list of tensors, which cannot be recorded where one requires grad. Call it under "
            f"torch.no_grad(), or write into each tensor in turn."
        )
    for tensor in written:
        check_write(tensor, name_of(func).rstrip("_"))
    result = func(*args, **kwargs)
    for tensor in written:
        record_write(func, tensor, args, kwargs, nodes)
    listed, fresh = fresh_results(_flat(result), args, kwargs)
    for item in listed:
        if isinstance(item, torch.Tensor) and item.dtype in DIFFERENTIABLE and not came_in(item, args, kwargs):
            _check_class(func, item)
    if fresh:
        node = MissingRule(func, args, kwargs, tuple(nodes))
        node.set_results(listed, fresh)
        mark_all(listed, fresh, enter(node), args[0] if args else None, several=len(fresh) > 1)
    return result


def _flat(result: Any) -> Any:
    """The results of an op that returns lists beside tensors, in one list."""
    if isinstance(result, tuple) and any(isinstance(item, list) for item in result):
        return [part for item in result for part in (item if isinstance(item, list) else (item,))]
    return result


def _check_class(func: Callable[..., Any], result: torch.Tensor) -> None:
    """Raise ``UnsupportedError`` for a result of a class from which no gradient comes back."""
    kind: Any = type(result)
    if result.is_nested or is_foreign(kind):
        raise UnsupportedError(
            f"{qualified(func)}() made a {'nested tensor' if result.is_nested else kind.__name__} out of a tracked tensor that "
            f"requires grad: no gradient can come back from there. Detach the tensor, or leave all of it to torch's own autograd."
        )
