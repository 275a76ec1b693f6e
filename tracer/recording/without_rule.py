"""Calls of functions that the registry does not know: answered by the tensor's class, run through their Python body, or without a rule."""

from __future__ import annotations

import threading
import types as python_types
from collections.abc import Callable
from typing import Any

import torch

from ops_registry.signatures import is_custom
from ops_registry.sites import run_parts
from ops_registry.torch_private import DisableTorchFunctionSubclass, HigherOrderOperator
from tracer.errors import UnsupportedError
from tracer.graph import enter
from tracer.naming import qualified
from tracer.node import Node, OpaqueNode, RaisingNode, tensors_in
from tracer.notes.cuts import NUMBERS, asked, note_integers, note_no_tensor, note_unrecorded
from tracer.recording.call import refuse_out
from tracer.recording.fallback import fallback_active, record_with_torch
from tracer.recording.forward_mode import handles_dual_numbers, no_history
from tracer.recording.inplace import check_write, is_in_place
from tracer.recording.library_ops import NO_BACKWARD, overload_of, run_library_op
from tracer.recording.missing_rule import MissingRule, name_of, record_write, written_arguments
from tracer.recording.parents import nodes_in
from tracer.recording.python_functions import redispatch
from tracer.recording.results import fresh_results, mark_all, mark_constant
from tracer.recording.subclasses import refuse_lost_history
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
    if isinstance(func, python_types.FunctionType):
        running = _running.functions
        if func not in running:
            running.add(func)
            try:
                return run_parts([], redispatch, func, types, args, kwargs)
            finally:
                running.discard(func)
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
        if asked.graphs and tensors_in(result):
            note_unrecorded(name_of(func), (args[1:] if is_in_place(func) else args, kwargs))
        return result if args and is_in_place(func) else mark_constant(result, args, kwargs)


def _record(
    func: Callable[..., Any], overload: Any, nodes: list[Node], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call, with a node that raises in backward, or that asks torch where the user wants it."""
    if isinstance(func, HigherOrderOperator):
        raise UnsupportedError(
            f"torch.ops.higher_order.{func.name()} was called with a tracked tensor that requires grad: it runs functions where nothing "
            f"is recorded. Call torch's function in front of it (torch.cond for cond), or the functions themselves."
        )
    written = written_arguments(func, overload, args, kwargs)
    if fallback_active() and not written and not is_custom(func):  # torch has no derivative of such an op either
        return record_with_torch(func, args, kwargs, name_of(func))[0]
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
    refuse_lost_history(qualified(func), listed, (*args, *kwargs.values()))
    if asked.graphs and fresh and len(fresh) < len(listed):
        note_integers(name_of(func), tuple(nodes))
    if fresh:
        made: OpaqueNode = MissingRule(func, args, kwargs, tuple(nodes))
        if handles_dual_numbers(func):
            made = RaisingNode("dual_number", no_history, tuple(nodes))
        made.set_results(listed, fresh)
        mark_all(listed, fresh, enter(made, listed), args[0] if args else None, several=len(fresh) > 1)
    elif asked.graphs and not written and (tensors_in(result) or name_of(func) in NUMBERS):
        note_no_tensor(name_of(func), (args, kwargs))
    return result


def _flat(result: Any) -> Any:
    """The results of an op that returns lists beside tensors, in one list."""
    if isinstance(result, tuple) and any(isinstance(item, list) for item in result):
        return [part for item in result for part in (item if isinstance(item, list) else (item,))]
    return result
