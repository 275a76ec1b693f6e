"""In-place writes: the value changes in the tensor itself, its history gets a new node, the rule is that of the op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ops_registry.binding import Spelling
from ops_registry.rule import FROM_RESULT, CallPlan, Rule
from ops_registry.shared.descriptors import dtype_of, is_nested, layout_of, shape_of
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    creation_of,
    saved_tensors_hooks,
    set_grad_enabled,
    use_count,
)
from tracer.errors import InPlaceError, UnsupportedError
from tracer.graph import enter, keeps_values
from tracer.node import CallNode, Leaf, Node, RaisingNode
from tracer.notes.cuts import asked, note_unrecorded
from tracer.notes.values import Values
from tracer.recording.levels import Argument, arguments_sharing, levels, physical
from tracer.recording.nested import refuse_nested
from tracer.recording.parents import DIFFERENTIABLE, find_parents
from tracer.recording.saved import NOTHING, Saved, note_write, pack_arguments, pack_saved, save, save_unpacked
from tracer.recording.views import (
    WriteBan,
    base_of,
    find_views_in_level,
    prepare,
    rebase,
    rewrite,
    write_ban,
    written_unrecorded,
)
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias

#: Ops that change how a tensor looks at its memory and write nothing into it.
GEOMETRY = frozenset({"as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"})

#: Why torch forbids to write into a plain view, by how it was made.
_BANS_OF_PLAIN_VIEWS = {
    "NO_GRAD_MODE": WriteBan.MADE_UNDER_NO_GRAD,
    "MULTI_OUTPUT_NODE": WriteBan.ONE_OF_SEVERAL,
    "IN_CUSTOM_FUNCTION": WriteBan.OF_A_FUNCTION,
}


def is_in_place(func: Callable[..., Any]) -> bool:
    """Whether the name of a torch function says that it writes into its first argument."""
    name = getattr(func, "__name__", "")
    return name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))


def record_in_place(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an in-place call and record it under the rule of the out-of-place op, by the steps of ``call.record``."""
    with DisableTorchFunctionSubclass():
        rule = spelling.rule
        if args and isinstance(args[0], torch.Tensor) and not asked.graphs and not torch.is_grad_enabled():
            # An optimiser's step: nothing to record, so nothing to bind.
            result = func(*args, **kwargs)
            note_unrecorded_write(rule, args[0])
            return result
        # 1 bind
        bound = spelling.bind(args, kwargs)
        target = bound[spelling.written_argument]
        # 2 inputs
        mask, parents, has_native = 0, (), False
        if torch.is_grad_enabled() and dtype_of(target) in DIFFERENTIABLE:
            mask, parents, has_native = find_parents(rule, bound)
        if not mask:
            if asked.graphs:
                note_unrecorded(rule.name, [value for value in bound if value is not target])
            result = func(*args, **kwargs)
            note_unrecorded_write(rule, target)
            return result
        plan = rule.plan(mask)
        if not has_native and _is_alone(target, rule):
            _write_alone(spelling, plan, parents, func, args, kwargs, bound)
        else:
            _write_shared(spelling, plan, parents, func, args, kwargs, bound)
        return None if func is torch.Tensor.__setitem__ else target


def _is_alone(target: torch.Tensor, rule: Rule) -> bool:
    """Whether nobody else shows the memory of ``target``, and torch forbids no write into it: then only its own history changes."""
    # A view holds its base: where Python alone holds a tensor, it has no views.
    return (
        target._base is None
        and use_count(target) == 1
        and (type(target._node) is not Leaf if type(target) is Tensor else not target.requires_grad)
        and write_ban(target) is None
        and layout_of(target) is torch.strided
        and not is_nested(target)
        and not levels.open
        and not keeps_values()
        and rule.name not in GEOMETRY
    )


def _write_alone(
    spelling: Spelling,
    plan: CallPlan,
    parents: tuple[Any, ...],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bound: tuple[Any, ...],
) -> None:
    """Steps 3 to 5 for a target that is alone with its memory: those of ``_write_shared``, with nobody else to think of."""
    rule, position = spelling.rule, spelling.written_argument
    target = bound[position]
    # The op overwrites what the rule may want.
    wanted = rule.signature.names[position] in plan.saved_names
    before = _before(spelling, plan, bound, copy=True) if wanted else bound
    if rule.forward is not None:
        result, by_products = rule.forward(*bound)
        saved = save(plan, before, result, by_products)
        if result is not target:
            target.copy_(result)
    else:
        saved = _save_and_run(plan, func, args, kwargs, before, target)
    node = enter(CallNode(plan, parents, shape_of(target), dtype_of(target), *saved), target)
    if type(target) is Tensor:
        rebase(target, node)
    else:
        become_tracked(target, node)
    note_write(target, rule.name)


def _write_shared(
    spelling: Spelling,
    plan: CallPlan,
    parents: tuple[Any, ...],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bound: tuple[Any, ...],
) -> None:
    """Steps 3 to 5 of a write, with the checks and the histories of all that shows the memory of the target."""
    rule, target = spelling.rule, bound[spelling.written_argument]
    check_write(target, rule.name)
    if rule.name not in GEOMETRY:
        prepare(target, rule.name)
    # 3 run and 4 save, in turns
    keep = keeps_values()
    bound_before = _before(spelling, plan, bound, copy=keep)
    # Aliased before the write: what shares memory with the target is at another version afterwards.
    values = Values(rule, bound_before) if keep else None
    saved = _write_and_save(spelling, plan, func, args, kwargs, bound, bound_before)
    # 5 mark
    node = enter(CallNode(plan, parents, shape_of(target), dtype_of(target), *saved), target)
    if values is not None:
        values.keep_result(target)
        node.values = values
    if rule.name in GEOMETRY:
        rebase(target, node)
        return
    rewrite(target, node)
    note_write(target, rule.name)
    if levels.open:
        _note_written_arguments(target)


def note_unrecorded_write(rule: Rule, target: torch.Tensor) -> None:
    """``target`` has just been written into by a call that leaves no node."""
    if rule.name not in GEOMETRY:
        written_unrecorded(target)
        note_write(target, rule.name)


def _before(spelling: Spelling, plan: CallPlan, bound: tuple[Any, ...], *, copy: bool) -> tuple[Any, ...]:
    """The arguments as they are before the write; the target as a copy where the rule wants its values, or ``copy`` says so.

    The op may read what it overwrites. Of a target that nobody wants, an alias tells the old shape.
    """
    position = spelling.written_argument
    before = plain_alias(bound[position])
    if copy or spelling.rule.signature.names[position] in plan.saved_names:
        before = before.clone()
    return (*bound[:position], before, *bound[position + 1 :])


def _write_and_save(
    spelling: Spelling,
    plan: CallPlan,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bound: tuple[Any, ...],
    bound_before: tuple[Any, ...],
) -> Saved:
    """Run the call, which writes into its target, and save what the rule names."""
    rule, target = spelling.rule, bound[spelling.written_argument]
    set_grad_enabled(False)
    try:
        if rule.forward is not None:
            result, by_products = rule.forward(*bound)
            saved = save(plan, bound_before, result, by_products)
            target.copy_(result)
            return saved
        return _save_and_run(plan, func, args, kwargs, bound_before, target)
    finally:
        set_grad_enabled(True)


def _save_and_run(
    plan: CallPlan,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    before: tuple[Any, ...],
    target: torch.Tensor,
) -> Saved:
    """Save what the rule names of the arguments ``before`` the write, run the call, and save its result."""
    if plan.gather is None:
        func(*args, **kwargs)
        return NOTHING
    # An argument that shares memory with the target is at another version afterwards, and backward says so; hooks are to have it as it was.
    saved, hooks = save_unpacked(plan, before, target), saved_tensors_hooks(False)
    if hooks is not None:
        saved = pack_arguments(plan, saved, hooks)
    func(*args, **kwargs)
    if plan.of_result:
        saved = _with_result(plan, saved, before, target)
    return pack_saved(saved, hooks)


def _with_result(plan: CallPlan, saved: Saved, bound: tuple[Any, ...], target: torch.Tensor) -> Saved:
    """What was saved before the write, with the version and the shape that the result has after it."""
    assert plan.gather is not None
    values, versions, _ = saved
    after = plan.gather(bound, target, {})
    tensors = set(plan.tensor_positions)
    values = tuple([old if i in tensors else new for i, (old, new) in enumerate(zip(values, after, strict=True))])
    results = [
        v for v, source in zip(values, plan.sources, strict=True) if source is not None and source <= FROM_RESULT
    ]
    if levels.open:
        results = [physical(r) for r in results if isinstance(r, torch.Tensor)]
    versions = [(t, t._version if any(t is r for r in results) else version) for t, version in versions]
    return values, versions, False


def check_write(target: torch.Tensor, name: str) -> None:
    """Raise ``InPlaceError`` where torch forbids the write."""
    name = f"{name.rstrip('_')}_"
    _check_memory(target, name)
    if levels.open:
        _check_write_into_arguments(target, name)


def _check_memory(target: torch.Tensor, name: str) -> None:
    """``check_write`` for what lies inside the innermost level of ``torch.vmap``."""
    if levels.open and type(target) is not Tensor:
        find_views_in_level(target)
    node = getattr(target, "_node", None)
    base: Any = base_of(target)
    if type(target) is not Tensor and not target.is_leaf:
        raise UnsupportedError(
            f"{name} writes tracked values into a tensor of shape {tuple(target.shape)} that has a history in torch's own autograd: "
            f"recording that is not supported. Use the out-of-place op, or track what it was made from (tracer.track, nn.track)."
        )
    if isinstance(node, Leaf) or (type(target) is not Tensor and target.requires_grad):
        raise InPlaceError(
            f"{name} writes into a leaf of shape {tuple(target.shape)} that requires grad: its gradient would be that of a value it "
            f"no longer has. Write under torch.no_grad(), or into a copy."
        )
    stored = target if base is None else base
    if is_nested(stored) or is_nested(target):
        refuse_nested(name)
    if layout_of(stored) is not torch.strided:
        raise UnsupportedError(
            f"{name} writes into a tensor of layout {stored.layout} and shape {tuple(stored.shape)}, or into its values: recording that "
            f"is not supported. Use the out-of-place op."
        )
    ban = write_ban(target)
    if base is None and ban is None:
        return
    if isinstance(getattr(base, "_node", None), Leaf) or (
        base is not None and type(base) is not Tensor and base.requires_grad
    ):
        raise InPlaceError(
            f"{name} writes into a view, of shape {tuple(target.shape)}, of a leaf of shape {tuple(base.shape)} that requires grad. "
            f"Write under torch.no_grad(), or into a copy."
        )
    if ban is None and type(target) is not Tensor:
        ban = _BANS_OF_PLAIN_VIEWS.get(creation_of(target))
    if ban is not None:
        raise InPlaceError(
            f"{name} writes into a view of shape {tuple(target.shape)} that {ban.value}. Use the out-of-place op."
        )


def _check_write_into_arguments(target: torch.Tensor, name: str) -> None:
    """``check_write`` for what lies outside, where ``target`` is an argument of vmapped functions, or a view of one.

    Raises ``UnsupportedError`` where the function holds that memory by another way too: there the write would go unseen.
    """
    base: Any = base_of(target)
    stored = target if base is None else base
    for argument in arguments_sharing(stored):
        if argument.inside is not stored or name.rstrip("_") in GEOMETRY:
            raise UnsupportedError(
                f"{name} writes into memory, shown in shape {tuple(target.shape)}, of an argument of a function under torch.vmap, which "
                f"the function holds in other ways too: they would not know of it. Write into a clone, and return it."
            )
        _check_memory(argument.outer, name)
        prepare(argument.outer, name)
        base = base_of(argument.outer)
        stored = argument.outer if base is None else base


def _note_written_arguments(target: torch.Tensor) -> None:
    """After a write into arguments of vmapped functions: what lies outside gets its history when their levels end, and none before."""
    base: Any = base_of(target)
    for argument in arguments_sharing(target if base is None else base):
        outer, inside = argument.outer, argument.inside._node  # type: ignore[attr-defined]
        rewrite_argument(
            argument, enter(RaisingNode("written_argument", _unknown_yet, (inside,), outer.shape, outer.dtype))
        )


def rewrite_argument(argument: Argument, node: Node) -> None:
    """Let ``node`` be the history, outside, of an argument that a vmapped function has written into."""
    base: Any = base_of(argument.outer)
    if not argument.written:
        argument.written, argument.before = True, None if base is None else getattr(base, "_node", None)
    elif base is not None:
        base._node = argument.before
    rewrite(argument.outer, node)


def _unknown_yet() -> Exception:
    return UnsupportedError(
        "backward reached a tensor that a function under torch.vmap has written into as its argument, as it was used by another way before "
        "the function returned. Use the argument itself, or write into a clone and return it."
    )


def write_recorded(target: torch.Tensor, node: Node, name: str) -> None:
    """``node`` is the history of ``target`` after a write that has been run: by a custom Function, or a function without a rule."""
    check_write(target, name)
    prepare(target, name)
    rewrite(target, node)
    if levels.open:
        _note_written_arguments(target)
