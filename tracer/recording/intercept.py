"""The way of a call begins here: ``__torch_function__`` of the tracked tensor.

The registry is asked once. The common call is recorded in the fast lane, right here; all others in the lane of their kind. This is the hot
path: it reads no property on a tracked tensor outside the guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ops_registry.binding import Kind, Spelling, gather_varargs
from ops_registry.registry import active
from ops_registry.torch_private import DisableTorchFunctionSubclass, is_any_autocast_enabled
from tracer.graph import current
from tracer.node import CallNode
from tracer.notes.cuts import asked, note_unrecorded
from tracer.recording.call import NO_KEYWORDS, decompose, record, record_with_native, run_unrecorded, save_and_mark
from tracer.recording.composed import record_composed
from tracer.recording.inplace import record_in_place
from tracer.recording.levels import levels
from tracer.recording.nested import refuse_nested
from tracer.recording.observed import run_observed
from tracer.recording.parents import DIFFERENTIABLE, check_uncovered, find_parents
from tracer.recording.results import came_in, mark, mark_constant
from tracer.recording.saved import NUMBERS, save
from tracer.recording.subclasses import is_foreign, meet
from tracer.recording.views import note_view
from tracer.recording.without_rule import call_without_rule
from tracer.tracked_tensor import Tensor

is_grad_enabled = torch.is_grad_enabled
_PLAIN = torch.Tensor

_LANES: dict[Kind, Callable[..., Any]] = {
    Kind.RULE: record,
    Kind.IN_PLACE: record_in_place,
    Kind.DECOMPOSITION: decompose,
    Kind.COMPOSED: record_composed,
    Kind.NO_GRADIENT: run_unrecorded,
    Kind.OBSERVED: run_observed,
}


def intercept(  # noqa: C901, PLR0912, PLR0915
    cls: type,
    func: Callable[..., Any],
    types: tuple[type, ...],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """``__torch_function__`` of the tracked tensor."""
    if len(types) > 1 and any(map(is_foreign, types)):
        return meet(func, types, args, kwargs or NO_KEYWORDS)
    try:
        spelling = active.table[func]
    except KeyError:
        return call_without_rule(func, types, args, kwargs or NO_KEYWORDS)
    while True:
        if spelling.fast:
            # Fast lane: inlined copy of ``call.record`` for a call whose arguments fit the signature as they come.
            # Without it a step of small ops takes 19 % longer (mul, add, tanh on 4 elements, forward and backward;
            # `benchmarks/lanes.py`, 2026-11).
            given = gather_varargs(args) if spelling.varargs else args
            count = len(given)
            tails = spelling.default_tails
            # 1 bind
            bound = given + tails[count] if count < len(tails) else None
            if kwargs and bound is not None:
                bound = spelling.with_keywords(bound, count, kwargs)
            if bound is not None:
                rule = spelling.rule
                forward = rule.forward
                if forward is not None and is_any_autocast_enabled():
                    return record(spelling, func, args, kwargs or NO_KEYWORDS)
                mask = 0
                with DisableTorchFunctionSubclass():
                    # 2 inputs
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
                                # A list, or a tensor of torch's own autograd: all inputs once more, with care.
                                mask, parents, has_native = find_parents(rule, bound)
                                if has_native:
                                    keywords = kwargs or NO_KEYWORDS
                                    return record_with_native(rule, mask, parents, func, args, keywords, bound)
                                break
                            bit += bit
                        else:
                            if rule.uncovered if kwargs else rule.uncovered_positional:
                                check_uncovered(rule, bound)
                    # 3 run
                    if not mask:
                        result = spelling.function(*args, **kwargs) if kwargs else spelling.function(*args)
                        if asked.graphs:
                            note_unrecorded(rule.name, (args, kwargs))
                        return mark_constant(result, args, kwargs or NO_KEYWORDS)
                    by_products = NO_KEYWORDS
                    if forward is None:
                        result = spelling.function(*args, **kwargs) if kwargs else spelling.function(*args)
                    else:
                        result, by_products = forward(*bound)
                    if (
                        type(result) is not _PLAIN
                        or result.dtype not in DIFFERENTIABLE
                        or (rule.may_return_plain and came_in(result, bound, NO_KEYWORDS))
                    ):
                        return save_and_mark(rule, mask, parents, bound, result, by_products)
                    # 4 save
                    plan = rule.plans.get(mask) or rule.plan(mask)
                    try:
                        shape = result.shape
                    except RuntimeError:  # a nested tensor has none
                        refuse_nested(func)
                    if plan.gather is None:
                        node = CallNode(plan, parents, shape, result.dtype)
                    else:
                        node = CallNode(plan, parents, shape, result.dtype, *save(plan, bound, result, by_products))
                    graph = current.graph
                    if graph is not None:
                        graph.note(node, result, bound)
                    # 5 mark
                    if rule.may_alias:
                        base = result._base
                        if base is not None:
                            note_view(result, base, bound[0])
                        elif levels.open:
                            return mark(result, node, bound[0])
                    result.__class__ = Tensor
                    result._node = node  # type: ignore[attr-defined]
                    return result
        if spelling.choose is None:
            return _LANES[spelling.kind](spelling, func, args, kwargs or NO_KEYWORDS)
        chosen = spelling.choose(args, kwargs or NO_KEYWORDS)
        if chosen is None:
            return call_without_rule(func, types, args, kwargs or NO_KEYWORDS)
        spelling = chosen


def run_in_lane(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call in the lane of its kind."""
    if spelling.choose is not None:
        chosen = spelling.choose(args, kwargs)
        if chosen is None:
            return call_without_rule(func, (Tensor,), args, kwargs)
        spelling = chosen
    return _LANES[spelling.kind](spelling, func, args, kwargs)
