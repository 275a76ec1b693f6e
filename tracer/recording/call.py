"""The general lane: the way of any recorded call, step by step. It is the definition; ``intercept`` has a fast copy of it.

1. bind: the arguments in the order of the rule's signature;
2. inputs: which of them want a gradient, and their nodes;
3. run: the torch function once, on plain storage;
4. save: what the rule names, in a node for the call;
5. mark: the results are tracked, with the node as their history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ops_registry.binding import Spelling
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import TABLE, active, changes
from ops_registry.rule import LISTS, Rule
from ops_registry.sites import open_graphs
from ops_registry.torch_private import DisableTorchFunctionSubclass, is_any_autocast_enabled
from tracer.errors import OutArgumentError
from tracer.graph import enter
from tracer.node import CallNode
from tracer.notes.cuts import asked, note_integers, note_unrecorded, note_without_gradient
from tracer.recording.autocast import autocast_to_single
from tracer.recording.forward_mode import alias_with_tangent
from tracer.recording.inplace import check_write
from tracer.recording.levels import levels
from tracer.recording.nested import refuse_nested
from tracer.recording.parents import DIFFERENTIABLE, find_parents, wants_gradient
from tracer.recording.results import came_in, fresh_results, mark, mark_all, mark_constant
from tracer.recording.saved import save
from tracer.recording.subclasses import refuse_lost_history
from tracer.tracked_tensor import Tensor

NO_KEYWORDS: dict[str, Any] = {}
_PLAIN = torch.Tensor
_OVERLOADS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def record(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call of an op that has a rule, and record it where an input wants a gradient."""
    rule = spelling.rule
    if rule.forward is not None:
        cast = autocast_to_single(record, spelling, func, args, kwargs)
        if cast is not NotImplemented:
            return cast
    with DisableTorchFunctionSubclass():
        mask, parents, has_native = 0, (), False
        if torch.is_grad_enabled():
            # 1 bind
            bound = _bind(spelling, args, kwargs)
            # 2 inputs
            if bound is not None:
                mask, parents, has_native = find_parents(rule, bound)
            if kwargs and (mask or wants_gradient(kwargs.get("out"))):
                refuse_out(rule.name, kwargs)
        if not mask:
            if asked.graphs:
                note_unrecorded(rule.name, (args, kwargs))
            return mark_constant(func(*args, **kwargs), args, kwargs)
        assert bound is not None
        if has_native:
            return record_with_native(rule, mask, parents, func, args, kwargs, bound)
        # 3 run
        result, by_products = _run(rule, func, args, kwargs, bound)
        # 4 save and 5 mark
        return save_and_mark(rule, mask, parents, bound, result, by_products)


def _bind(spelling: Spelling, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The bound arguments; None for a call that does not fit the rule's signature and wants no gradient."""
    try:
        return spelling.bind(args, kwargs)
    except UnsupportedCallError:
        if wants_gradient((args, kwargs)):
            raise
        return None


def _run(
    rule: Rule, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], bound: tuple[Any, ...]
) -> tuple[Any, dict[str, Any]]:
    """The forward, with its by-products: the rule's own where it wants some, else the torch function as it was called."""
    return (func(*args, **kwargs), NO_KEYWORDS) if rule.forward is None else rule.forward(*bound)


def save_and_mark(
    rule: Rule, mask: int, parents: tuple[Any, ...], bound: tuple[Any, ...], result: Any, by_products: dict[str, Any]
) -> Any:
    """Leave a node for the call and mark its results."""
    if type(result) is _PLAIN:
        if result.dtype not in DIFFERENTIABLE:
            if asked.graphs:
                note_integers(rule.name, parents)
            return result
        if rule.may_alias and came_in(result, bound, NO_KEYWORDS):
            return result
        if result.is_nested:
            refuse_nested(rule.name)
        plan = rule.plan(mask)
        saved = save(plan, bound, result, by_products)
        node = enter(CallNode(plan, parents, result.shape, result.dtype, *saved), result, bound)
        return mark(result, node, bound[0])
    if not isinstance(result, LISTS):
        # A tracked tensor that the op handed back as it was (contiguous() of a contiguous tensor), or no tensor.
        if type(result) is not Tensor:
            refuse_lost_history(rule.name, (result,), bound)
        return result
    listed, fresh = fresh_results(result, bound, NO_KEYWORDS)
    if len(fresh) < len(listed):
        refuse_lost_history(rule.name, listed, bound)
        if asked.graphs and any(isinstance(r, _PLAIN) and r.dtype not in DIFFERENTIABLE for r in listed):
            note_integers(rule.name, parents)
    constants = rule.constant_results
    wanted = [i for i in fresh if i not in constants]
    for i in fresh:
        if i in constants:
            mark(listed[i], None, bound[0], several=True)
    if wanted:
        plan = rule.plan(mask)
        node = CallNode(plan, parents, None, None, *save(plan, bound, result, by_products))
        node.set_results(listed, wanted, several=rule.signature.returns_list)
        mark_all(listed, wanted, enter(node, result, bound), bound[0], several=not rule.makes_each_view)
    return result


def record_with_native(
    rule: Rule,
    mask: int,
    parents: tuple[Any, ...],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bound: tuple[Any, ...],
) -> Any:
    """Steps 3 to 5 of a call with tensors of torch's own autograd among its inputs: torch must not record it a second time."""
    originals: dict[int, torch.Tensor] = {}
    aliases: dict[int, torch.Tensor] = {}
    args, bound_plain, kwargs = (_without_history(nest, aliases, originals) for nest in (args, bound, kwargs))
    result, by_products = _run(rule, func, args, kwargs, bound_plain)
    if id(result) in originals:
        return originals[id(result)]  # n.to(x) of the same dtype: torch hands n itself back
    return save_and_mark(rule, mask, parents, bound, result, by_products)


def _without_history(nest: Any, aliases: dict[int, torch.Tensor], originals: dict[int, torch.Tensor]) -> Any:
    """A nest of arguments with plain aliases in place of the tensors that torch's autograd would record.

    ``aliases`` gives the alias of a tensor by its id, ``originals`` the tensor of an alias by its id.
    """
    if isinstance(nest, _PLAIN):
        if type(nest) is Tensor or not nest.requires_grad:
            return nest
        if id(nest) not in aliases:
            aliases[id(nest)] = alias_with_tangent(nest)
            originals[id(aliases[id(nest)])] = nest
        return aliases[id(nest)]
    if isinstance(nest, dict):
        return {name: _without_history(value, aliases, originals) for name, value in nest.items()}
    if type(nest) in (tuple, list):
        return type(nest)([_without_history(value, aliases, originals) for value in nest])
    return nest


def refuse_out(name: str, kwargs: dict[str, Any]) -> None:
    """Raise ``OutArgumentError`` for a call with ``out=`` that wants a gradient."""
    if kwargs.get("out") is None:
        return
    if get_worker_info() is not None:
        raise OutArgumentError(
            f"a DataLoader worker was to send a tensor that requires grad, and {name}() was called with out= to put it into shared "
            f"memory: no history crosses processes, and its gradient would be lost. Return x.detach() from the dataset, or load in "
            f"this process (num_workers=0)."
        )
    raise OutArgumentError(
        f"{name}() was called with out= and an argument that requires grad: what is written there would have no "
        f"history. Use the result, or call it under torch.no_grad()."
    )


def decompose(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op that is defined by other ops: run those, where a gradient is wanted."""
    rule = spelling.rule
    if torch.is_grad_enabled():
        if rule.as_one is not None and not looked_into():
            result = _record_as_one(spelling, rule.as_one, args, kwargs)
            if result is not NotImplemented:
                return result
        if wants_gradient(args) or (kwargs and wants_gradient(kwargs)):
            refuse_out(rule.name, kwargs)
            cast = autocast_to_single(decompose, spelling, func, args, kwargs)
            return _run_parts(spelling, func, spelling.bind(args, kwargs)) if cast is NotImplemented else cast
    with DisableTorchFunctionSubclass():
        result = func(*args, **kwargs)
        if asked.graphs:
            note_unrecorded(rule.name, (args[1:] if spelling.inplace else args, kwargs))
        return result if spelling.inplace else mark_constant(result, args, kwargs)


def _run_parts(spelling: Spelling, func: Callable[..., Any], bound: tuple[Any, ...]) -> Any:
    """Run the ops that define another."""
    decomposition = spelling.rule.decomposition
    assert decomposition is not None
    if not spelling.inplace:
        return decomposition(*bound)
    if not isinstance(bound[0], list | tuple):
        return bound[0].copy_(decomposition(*bound))
    for target in bound[0]:  # before the first of them is written: a call that raises leaves all as they were
        check_write(target, spelling.rule.name.rstrip("_"))
    decomposition(*bound)
    return None if isinstance(func, _OVERLOADS) else bound[0]


def looked_into() -> bool:
    """Whether somebody has a say in the parts of a call, or is to see them."""
    return (
        active.table is not TABLE
        or changes.replaced
        or open_graphs.count > 0
        or bool(levels.open)
        or is_any_autocast_enabled()
    )


def _record_as_one(spelling: Spelling, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op that is defined by others, by its rule as one; ``NotImplemented`` where that does not serve."""
    with DisableTorchFunctionSubclass():
        bound = spelling.bind(args, kwargs)
        mask, parents, has_native = find_parents(rule, bound)
        if not mask or has_native or kwargs.get("out") is not None:
            return NotImplemented
        assert rule.forward is not None
        made = rule.forward(*bound)
        return NotImplemented if made is None else save_and_mark(rule, mask, parents, bound, *made)


def run_unrecorded(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op whose results never carry a gradient."""
    with DisableTorchFunctionSubclass():
        result = func(*args, **kwargs)
        if asked.graphs and spelling.rule.reads_values:
            note_without_gradient(spelling.rule.name, (args, kwargs))
        return result
