"""Calls of functions that the registry does not know: answered by the tensor's class, run through their Python body, or without a rule."""

from __future__ import annotations

import threading
import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry import registry
from ops_registry.torch_private import DisableTorchFunctionSubclass, HigherOrderOperator
from tracer.errors import MissingRuleError, UnsupportedError
from tracer.graph import enter
from tracer.naming import describe, qualified
from tracer.node import Node, OpaqueNode
from tracer.recording.call import refuse_out
from tracer.recording.fallback import fallback_active, record_with_torch
from tracer.recording.inplace import is_in_place, write_recorded
from tracer.recording.parents import DIFFERENTIABLE, nodes_in
from tracer.recording.python_functions import redispatch
from tracer.recording.results import came_in, fresh_results, mark_all, mark_constant
from tracer.recording.subclasses import is_foreign
from tracer.tracked_tensor import HANDLERS


class MissingRule(OpaqueNode):
    """A call of a function without a rule: backward raises there."""

    __slots__ = ("arguments", "function")

    def __init__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], parents: tuple[Any, ...]
    ) -> None:
        super().__init__(registry.op_name(func) if hasattr(func, "__name__") else str(func), parents, None, None)
        #: As a user would write the function, and its arguments as text.
        self.function = qualified(func)
        self.arguments = describe((*args, *kwargs.values()))

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        line = (
            f", called at {self.line}"
            if self.line
            else " (tracer.Graph(record_lines=True) would tell where it was called)"
        )
        short = self.op.strip("_")
        raise MissingRuleError(
            f"{self.function}({self.arguments}) has no backward rule{line}.\n"
            f"Write one:\n\n"
            f"    @ops_registry.backward({self.function})\n"
            f"    def {short}(grad, ...):   # name the arguments, or 'result', that the formula needs\n"
            f"        return ...\n\n"
            f'or take this derivative from torch\'s own autograd: with tracer.fallback("torch"): ...'
        )


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
    with DisableTorchFunctionSubclass():
        nodes = nodes_in((args, kwargs)) if torch.is_grad_enabled() else []
        if nodes:
            return _record(func, nodes, args, kwargs)
        result = func(*args, **kwargs)
        return result if args and is_in_place(func) else mark_constant(result, args, kwargs)


def _record(func: Callable[..., Any], nodes: list[Node], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call, with a node that raises in backward, or that asks torch where the user wants it."""
    if isinstance(func, HigherOrderOperator):
        raise UnsupportedError(
            f"torch.ops.higher_order.{func.name()} was called with a tracked tensor that requires grad: it runs functions where nothing "
            f"is recorded. Call torch's function in front of it (torch.cond for cond), or the functions themselves."
        )
    in_place = bool(args) and is_in_place(func)
    if fallback_active() and not in_place:
        return record_with_torch(func, args, kwargs, registry.op_name(func))[0]
    refuse_out(qualified(func), kwargs)
    if in_place and isinstance(args[0], tuple | list):
        raise UnsupportedError(
            f"{qualified(func)} writes into a list of tensors, which cannot be recorded where one requires grad. Call it under "
            f"torch.no_grad(), or write into each tensor in turn."
        )
    result = func(*args, **kwargs)
    if in_place:
        node = enter(MissingRule(func, args, kwargs, tuple(nodes)))
        write_recorded(args[0], node, node.op.rstrip("_"))
        return result
    listed, fresh = fresh_results(result, args, kwargs)
    for item in listed:
        if isinstance(item, torch.Tensor) and item.dtype in DIFFERENTIABLE and not came_in(item, args, kwargs):
            _check_class(func, item)
    if fresh:
        node = MissingRule(func, args, kwargs, tuple(nodes))
        node.set_results(listed, fresh)
        mark_all(listed, fresh, enter(node), args[0] if args else None, several=len(fresh) > 1)
    return result


def _check_class(func: Callable[..., Any], result: torch.Tensor) -> None:
    """Raise ``UnsupportedError`` for a result of a class from which no gradient comes back."""
    kind: Any = type(result)
    if result.is_nested or is_foreign(kind):
        raise UnsupportedError(
            f"{qualified(func)}() made a {'nested tensor' if result.is_nested else kind.__name__} out of a tracked tensor that "
            f"requires grad: no gradient can come back from there. Detach the tensor, or leave all of it to torch's own autograd."
        )
