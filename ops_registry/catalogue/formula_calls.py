"""Which torch functions a formula calls, read from its source: its own derivative depends on their rules.

Only the branch that runs while backward is recorded counts: ``recorded()`` (``torch.is_grad_enabled()``) is taken to be true.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.overrides import get_testing_overrides

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import lookup

_UNKNOWN = object()

#: Where a gradient is meant to end, and what only asks whether there is one.
_WANTED: Any = torch.Tensor.requires_grad
_ENDS = (torch.Tensor.detach, _WANTED.__get__)

#: Types of other things than tensors that formulas handle: a method of theirs that has no rule is taken for theirs.
_PLAIN_TYPES = (str, list, tuple, dict, torch.Size)


def without_rule(function: Callable[..., Any]) -> list[str]:
    """Names of the functions that ``function`` may call, that torch lets a tensor subclass intercept and that have no rule; sorted.

    Those of torch that are written in Python are looked into, as are the helpers of this package; a method is taken for the
    tensor's method of that name, whatever it is called on.
    """
    return sorted({_name(f) for f in _called(function) if _is_op(f) and f not in _ENDS and lookup(f) is None})


def refuses(function: Callable[..., Any]) -> Literal["every", "some", "no"]:
    """Which calls ``function`` answers with ``UnsupportedCallError``."""
    body = _recorded(_body(inspect.unwrap(function).__code__))
    if all(isinstance(s, ast.Raise) or _is_docstring(s) for s in body):
        return "every"
    return "some" if UnsupportedCallError in _called(function) else "no"


def returns_none(function: Callable[..., Any]) -> bool:
    """Whether ``function`` does nothing but return None."""
    body = [s for s in _body(inspect.unwrap(function).__code__) if not _is_docstring(s)]
    return all(isinstance(s, ast.Return) and isinstance(s.value, ast.Constant) and s.value.value is None for s in body)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _name(function: Any) -> str:
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(function)
    return str(torch.overrides.resolve_name(function) or getattr(function, "__qualname__", function))


def _is_op(function: Any) -> bool:
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return True
    return function in get_testing_overrides() and not isinstance(function, types.FunctionType)


@functools.cache
def _called(function: Callable[..., Any]) -> frozenset[Callable[..., Any]]:
    found: set[Callable[..., Any]] = set()
    seen = set()
    todo = [inspect.unwrap(function)]
    while todo:
        current = todo.pop()
        seen.add(current)
        for thing in _named(current):
            if isinstance(thing, types.FunctionType) and _is_looked_into(thing):
                if thing not in seen:
                    todo.append(thing)
            else:
                found.add(thing)
    return frozenset(found)


def _is_looked_into(function: types.FunctionType) -> bool:
    """Whether it is a helper of ours or a Python-level function of torch: such run their body with interception on."""
    if lookup(function) is not None:
        return False
    return (
        function.__module__.startswith(("ops_registry.rules.", "ops_registry.shared."))
        or function in get_testing_overrides()
    )


def _named(function: types.FunctionType) -> Iterator[Callable[..., Any]]:
    """Everything callable that the source of ``function`` names."""
    known: dict[str, Any] = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for local in function.__code__.co_varnames:
        known.pop(local, None)
    for node in _expressions(_recorded(_body(function.__code__))):
        thing = _resolve(node, known)
        if callable(thing) and type(thing).__hash__ is not None:
            yield thing


@functools.cache
def _body(code: types.CodeType) -> list[ast.stmt]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    if isinstance(definition, ast.FunctionDef):
        return definition.body
    return [definition]  # a lambda, with the statement around it


def _recorded(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that can run while backward is recorded."""
    running: list[ast.stmt] = []
    for statement in statements:
        recorded = _asks_whether_recorded(statement.test) if isinstance(statement, ast.If) else None
        if not isinstance(statement, ast.If) or recorded is None:
            running.append(statement)
            continue
        inside = _recorded(statement.body if recorded else statement.orelse)
        running.extend(inside)
        if inside and isinstance(inside[-1], ast.Return | ast.Raise):
            return running
    return running


def _asks_whether_recorded(test: ast.expr) -> bool | None:
    """What a condition comes to while backward is recorded, as far as ``recorded()`` decides it; else None."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        answer = _asks_whether_recorded(test.operand)
        return None if answer is None else not answer
    if isinstance(test, ast.BoolOp):
        answers = {_asks_whether_recorded(part) for part in test.values}
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in answers else None if None in answers else not decisive
    if not isinstance(test, ast.Call):
        return None
    called = test.func.attr if isinstance(test.func, ast.Attribute) else getattr(test.func, "id", "")
    return True if called in ("recorded", "is_grad_enabled") else None


def _expressions(statements: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """All names, and all attributes (``torch.ops.aten.add`` is one, ``torch.ops.aten`` another)."""
    todo: list[ast.AST] = list(statements)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name | ast.Attribute):
            yield node
        todo.extend(ast.iter_child_nodes(node))


def _resolve(node: ast.expr, known: dict[str, Any]) -> Any:
    """What a name or a chain of attributes stands for; an attribute of something unknown is taken for a tensor's."""
    if isinstance(node, ast.Name):
        return known.get(node.id, _UNKNOWN)
    if not isinstance(node, ast.Attribute):
        return _UNKNOWN
    owner = _resolve(node.value, known)
    if isinstance(owner, types.ModuleType | type | _NAMESPACES):
        return getattr(owner, node.attr, _UNKNOWN)
    method = getattr(torch.Tensor, node.attr, _UNKNOWN)
    if inspect.isgetsetdescriptor(method) or isinstance(method, property):
        method = method.__get__
    if any(hasattr(kind, node.attr) for kind in _PLAIN_TYPES) and (not callable(method) or lookup(method) is None):
        return _UNKNOWN
    return method


#: Where torch keeps functions, apart from modules and types.
_NAMESPACES = torch._ops._Ops | torch._ops._OpNamespace | torch._ops.OpOverloadPacket
