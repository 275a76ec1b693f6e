"""The way of a call: ``Tensor.__torch_function__`` ends here.

Look the rule up, run the torch function once on plain storage with interception off, leave a node behind, mark the result.
This is the hot path: it reads no property on a tracked tensor outside the guard and asks the registry once.
"""

from __future__ import annotations

import functools
import threading
import types as python_types
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from ops_registry import registry
from ops_registry.binding import Spelling, gather_varargs
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import active
from ops_registry.rule import CallPlan, Rule
from ops_registry.signatures import Signature
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import OutArgumentError, UnsupportedError
from tracer.graph import current, enter, tend
from tracer.naming import describe, qualified
from tracer.node import Node
from tracer.recording import inplace
from tracer.recording.fallback import fallback_active, record_with_torch
from tracer.recording.parents import DIFFERENTIABLE, check_uncovered, find_parents, nodes_in
from tracer.recording.python_functions import redispatch
from tracer.recording.saved import NUMBERS, keep
from tracer.recording.views import note_view
from tracer.tracked_tensor import HANDLERS, Tensor, plain_alias

_NO_KWARGS: dict[str, Any] = {}
is_grad_enabled = torch.is_grad_enabled
_PLAIN = torch.Tensor


def intercept(
    cls: type,
    func: Callable[..., Any],
    types: tuple[type, ...],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """``__torch_function__`` of the tracked tensor."""
    if len(types) > 1 and any(map(_is_foreign, types)):
        return NotImplemented
    try:
        spelling = active.table[func]
    except KeyError:
        return _without_rule(func, types, args, kwargs or _NO_KWARGS)
    if spelling.fast and not kwargs:
        given = gather_varargs(args) if spelling.varargs else args
        count = len(given)
        tails = spelling.default_tails
        if count < len(tails):
            # The common case, a call by position of an op whose rule wants nothing special: what ``find_parents``, ``keep`` and
            # ``attach`` do for all others, in one stretch for speed.
            rule = spelling.rule
            bound = given + tails[count]
            mask = 0
            with DisableTorchFunctionSubclass():
                if is_grad_enabled():
                    parents: tuple[Any, ...] = ()
                    bit = 1
                    for position in rule.positions:
                        value = bound[position]
                        kind = type(value)
                        if kind is Tensor:
                            node = value._node
                            if node is not None:
                                parents += (node,)
                                mask |= bit
                        elif kind not in NUMBERS and (kind is not _PLAIN or value.requires_grad):
                            mask, parents, has_native = find_parents(rule, bound)
                            if has_native:
                                return _with_native(rule, mask, parents, func, args, bound)
                            break
                        bit += bit
                    if rule.uncovered_positional:
                        check_uncovered(rule, bound)
                result = spelling.function(*args)
                if not mask:
                    return mark_untracked(result, args, None)
                if type(result) is not _PLAIN or rule.may_alias or result.dtype not in DIFFERENTIABLE:
                    return attach(rule, mask, parents, bound, result, _NO_KWARGS)
                plan = rule.plans.get(mask) or rule.plan(mask)
                if plan.gather is None:
                    node = Node(plan, parents, result.shape, result.dtype)
                else:
                    node = Node(plan, parents, result.shape, result.dtype, *keep(plan, bound, result, _NO_KWARGS))
                graph = current.graph
                graph.note(ref(node))
                if graph.record_lines or not node.serial & 4095:
                    tend(graph, node)
                result.__class__ = Tensor
                result._node = node  # type: ignore[attr-defined]
                return result
    if spelling.pick_overload is not None:
        spelling = spelling.pick_overload(args, kwargs or _NO_KWARGS)
    rule = spelling.rule
    if rule.decomposition is not None:
        return _decompose(spelling, func, args, kwargs or _NO_KWARGS)
    with DisableTorchFunctionSubclass():
        if rule.no_gradient:
            return func(*args, **kwargs) if kwargs else func(*args)
        if spelling.inplace:
            return inplace.record(spelling, func, args, kwargs or _NO_KWARGS)
        mask, parents, has_native = 0, (), False
        if torch.is_grad_enabled():
            try:
                bound = spelling.bind(args, kwargs or _NO_KWARGS)
            except UnsupportedCallError:
                if nodes_in((args, kwargs)):
                    raise
            else:
                mask, parents, has_native = find_parents(rule, bound)
        if kwargs and torch.is_grad_enabled() and (mask or nodes_in(kwargs.get("out"))):
            _refuse_out(rule.name, kwargs)
        if not mask:
            return mark_untracked(func(*args, **kwargs) if kwargs else func(*args), args, kwargs)
        if has_native:
            return _with_native(rule, mask, parents, func, args, bound, kwargs)
        result, extra = _run(rule, func, args, bound, kwargs)
        return attach(rule, mask, parents, bound, result, extra)


def _refuse_out(name: str, kwargs: dict[str, Any]) -> None:
    if kwargs.get("out") is not None:
        raise OutArgumentError(
            f"{name}() was called with out= and an argument that requires grad: what is written there would have no "
            f"history. Use the result, or call it under torch.no_grad()."
        )


def _decompose(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op that is defined by other ops: run those, where a gradient is wanted."""
    if torch.is_grad_enabled() and nodes_in((args, kwargs)):
        _refuse_out(spelling.rule.name, kwargs)
        assert spelling.rule.decomposition is not None
        result = spelling.rule.decomposition(*spelling.bind(args, kwargs))
        return args[0].copy_(result) if spelling.inplace else result
    with DisableTorchFunctionSubclass():
        return mark_untracked(func(*args, **kwargs), args, kwargs)


@functools.cache
def _is_foreign(kind: type) -> bool:
    """Whether a class intercepts calls in a way of its own, so that the call is for it to answer."""
    theirs = getattr(kind, "__torch_function__", None)
    return not issubclass(kind, Tensor) and getattr(theirs, "__func__", theirs) not in _HARMLESS


_HARMLESS = (torch.Tensor.__torch_function__.__func__, torch.nn.Parameter.__torch_function__)  # type: ignore[attr-defined]


def _run(
    rule: Rule, func: Callable[..., Any], args: tuple[Any, ...], bound: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> tuple[Any, dict[str, Any]]:
    """The forward: the rule's own where it wants by-products, else the torch function as it was called."""
    if rule.forward is not None:
        return rule.forward(*bound)
    return (func(*args, **kwargs) if kwargs else func(*args)), _NO_KWARGS


def _with_native(
    rule: Rule,
    mask: int,
    parents: tuple[Any, ...],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    bound: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """A call with tensors of torch's own autograd among its inputs: torch must not record it a second time."""
    originals: dict[int, torch.Tensor] = {}
    aliases: dict[int, torch.Tensor] = {}
    args, bound_plain, kwargs = (_without_history(nest, aliases, originals) for nest in (args, bound, kwargs))
    result, extra = _run(rule, func, args, bound_plain, kwargs)
    if id(result) in originals:
        return originals[id(result)]  # n.to(x) of the same dtype: torch hands n itself back
    return attach(rule, mask, parents, bound, result, extra)


def _without_history(nest: Any, aliases: dict[int, torch.Tensor], originals: dict[int, torch.Tensor]) -> Any:
    """A nest of arguments with plain aliases in place of the tensors that torch's autograd would record.

    ``aliases`` gives the alias of a tensor by its id, ``originals`` the tensor of an alias by its id.
    """
    if isinstance(nest, _PLAIN):
        if type(nest) is Tensor or not nest.requires_grad:
            return nest
        if id(nest) not in aliases:
            aliases[id(nest)] = plain_alias(nest)
            originals[id(aliases[id(nest)])] = nest
        return aliases[id(nest)]
    if isinstance(nest, dict):
        return {name: _without_history(value, aliases, originals) for name, value in nest.items()}
    if type(nest) in (tuple, list):
        return type(nest)([_without_history(value, aliases, originals) for value in nest])
    return nest


def attach(
    rule: Rule, mask: int, parents: tuple[Any, ...], bound: tuple[Any, ...], result: Any, extra: dict[str, Any]
) -> Any:
    """Leave a node for the call and mark its results as tracked."""
    plan = rule.plan(mask)
    if type(result) is not _PLAIN:
        return _attach_structure(plan, parents, bound, result, extra)
    if result.dtype not in DIFFERENTIABLE or (rule.may_alias and _came_in(result, bound, None)):
        return result
    node = enter(Node(plan, parents, result.shape, result.dtype, *keep(plan, bound, result, extra)))
    if result._base is not None:
        note_view(result, bound[0])
    result.__class__ = Tensor
    result._node = node  # type: ignore[attr-defined]
    return result


def _attach_structure(
    plan: CallPlan, parents: tuple[Any, ...], bound: tuple[Any, ...], result: Any, extra: dict[str, Any]
) -> Any:
    """As ``attach``, for a result that is several tensors, or no fresh tensor at all."""
    if not isinstance(result, tuple | list):
        # A tracked tensor that the op handed back as it was (contiguous() of a contiguous tensor), or no tensor.
        return result
    fresh = [
        i
        for i, item in enumerate(result)
        if type(item) is _PLAIN and item.dtype in DIFFERENTIABLE and not _came_in(item, bound, None)
    ]
    constants = plan.rule.constant_results
    for i in constants:
        if i in fresh:
            mark_untracked(result[i], bound, None, multiple=True)
    positions = [i for i in fresh if i not in constants] if constants else fresh
    if not positions:
        return result
    single = len(positions) == 1 and not plan.rule.signature.returns_list
    first = result[positions[0]]
    kept, saved = keep(plan, bound, result, extra)
    node = enter(Node(plan, parents, first.shape if single else None, first.dtype if single else None, kept, saved))
    if not single:
        node.extra().outputs = [None] * len(result)
    for i in positions:
        item = result[i]
        if item._base is not None:
            note_view(item, bound[0], multiple=True)
        item.__class__ = Tensor
        item._node = node if single else node.output(i, item.shape, item.dtype)
    return result


def mark_untracked(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, multiple: bool = False) -> Any:
    """Mark fresh results of a call that leaves no node: they are tracked tensors that do not require grad."""
    if type(result) is _PLAIN:
        if result.dtype in DIFFERENTIABLE and not _came_in(result, args, kwargs):
            if result._base is not None:
                note_view(result, args[0] if args else None, multiple)
            result.__class__ = Tensor
    elif isinstance(result, tuple | list) and type(result) is not torch.Size:
        for item in result:
            mark_untracked(item, args, kwargs, multiple=True)
    return result


def _came_in(result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    for value in (*args, *(kwargs or _NO_KWARGS).values()):
        if value is result or (isinstance(value, tuple | list) and any(v is result for v in value)):
            return True
    return False


def _without_rule(
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
        if nodes and fallback_active() and not inplace.is_in_place(func):
            return record_with_torch(func, args, kwargs, registry.op_name(func))
        if nodes:
            _refuse_out(qualified(func), kwargs)
        written = args[0] if args and inplace.is_in_place(func) else None
        if nodes and isinstance(written, tuple | list):
            raise UnsupportedError(
                f"{qualified(func)} writes into a list of tensors, which cannot be recorded where one requires grad. Call it under "
                f"torch.no_grad(), or write into each tensor in turn."
            )
        result = func(*args, **kwargs)
        if written is not None:
            if nodes:
                inplace.rebase_missing(written, _missing(func, nodes, args, kwargs))
            return result
        if not nodes:
            return mark_untracked(result, args, kwargs)
        return _attach_missing(func, nodes, args, kwargs, result)


class _Running(threading.local):
    """Python-level functions whose body is running: met again inside itself, a function is a call of its C counterpart
    (``Tensor.unflatten`` calls ``super().unflatten``, which arrives under the same name).
    """

    def __init__(self) -> None:
        self.functions: set[Callable[..., Any]] = set()


_running = _Running()


def _missing(func: Callable[..., Any], nodes: list[Node], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """A node without a rule: backward raises there."""
    name = registry.op_name(func) if hasattr(func, "__name__") else str(func)
    node = Node(CallPlan(Rule(name, Signature((), {})), (), (), None, ()), tuple(nodes), None, None)
    node.kept = (qualified(func), describe((*args, *kwargs.values())))
    return enter(node)


def _attach_missing(
    func: Callable[..., Any], nodes: list[Node], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    items = [result] if isinstance(result, _PLAIN) else list(result) if isinstance(result, tuple | list) else []
    items = [i for i in items if isinstance(i, _PLAIN) and i.dtype in DIFFERENTIABLE and not _came_in(i, args, kwargs)]
    for item in items:
        kind: Any = type(item)
        if item.is_nested or (kind is not _PLAIN and _is_foreign(kind)):
            raise UnsupportedError(
                f"{qualified(func)}() made a {'nested tensor' if item.is_nested else kind.__name__} out of a tracked tensor that "
                f"requires grad: no gradient can come back from there. Detach the tensor, or leave all of it to torch's own autograd."
            )
    fresh = [i for i in items if type(i) is _PLAIN]
    if not fresh:
        return result
    node = _missing(func, nodes, args, kwargs)
    node.extra().outputs = [None] * len(fresh)
    for i, item in enumerate(fresh):
        if item._base is not None:
            note_view(item, args[0] if args else None, multiple=len(fresh) > 1)
        item.__class__ = Tensor
        item._node = node.output(i, item.shape, item.dtype)  # type: ignore[attr-defined]
    return result


Tensor.__torch_function__ = classmethod(intercept)  # type: ignore[assignment,method-assign]
