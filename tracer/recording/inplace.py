"""In-place writes: the value changes in the tensor itself, its history gets a new node, the rule is that of the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry.binding import Spelling
from ops_registry.rule import FROM_RESULT, CallPlan
from ops_registry.torch_private import saved_tensors_hooks, set_grad_enabled
from tracer.errors import InPlaceError, UnsupportedError
from tracer.graph import enter
from tracer.node import Leaf, Node
from tracer.recording.parents import DIFFERENTIABLE, find_parents
from tracer.recording.saved import keep, keep_unpacked, note_write, pack_kept
from tracer.recording.views import prepare, rebase, rewrite, written_unrecorded
from tracer.tracked_tensor import Tensor, plain_alias

#: Ops that change how a tensor looks at its memory and write nothing into it.
GEOMETRY = frozenset({"as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"})


def is_in_place(func: Callable[..., Any]) -> bool:
    """Whether the name of a torch function says that it writes into its first argument."""
    name = getattr(func, "__name__", "")
    return name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))


def record(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an in-place call and record it under the rule of the out-of-place op. Interception is off."""
    rule = spelling.rule
    bound = spelling.bind(args, kwargs)
    target = bound[spelling.written_argument]
    mask, parents = 0, ()
    if torch.is_grad_enabled() and target.dtype in DIFFERENTIABLE:
        mask, parents, _ = find_parents(rule, bound)
    if not mask:
        result = func(*args, **kwargs)
        if rule.name not in GEOMETRY:
            written_unrecorded(target)
            note_write(target, rule.name)
        return result
    check_write(target, rule.name)
    if rule.name not in GEOMETRY:
        prepare(target, rule.name)
    plan = rule.plan(mask)
    # The op may read what it overwrites: an alias tells the old shape, a copy the old values where the rule wants them.
    before = plain_alias(target)
    if rule.signature.names[spelling.written_argument] in plan.saved_names:
        before = before.clone()
    bound_before = (*bound[: spelling.written_argument], before, *bound[spelling.written_argument + 1 :])
    set_grad_enabled(False)
    try:
        if rule.forward is not None:
            result, extra = rule.forward(*bound)
            kept, saved = keep(plan, bound_before, result, extra)
            target.copy_(result)
        else:
            # Kept before the write: an argument that shares memory with the target is at another version afterwards, and backward says so.
            kept, saved = keep_unpacked(plan, bound_before, target, {})
            func(*args, **kwargs)
            kept, saved = _with_result(plan, kept, saved, bound_before, target)
            kept, saved = pack_kept(kept, saved, saved_tensors_hooks(False))
    finally:
        set_grad_enabled(True)
    node = enter(Node(plan, parents, target.shape, target.dtype, kept, saved))
    if rule.name in GEOMETRY:
        rebase(target, node)
    else:
        rewrite(target, node)
        note_write(target, rule.name)
    return None if func is torch.Tensor.__setitem__ else target


def _with_result(
    plan: CallPlan,
    kept: tuple[Any, ...],
    saved: Sequence[tuple[torch.Tensor, int]],
    bound: tuple[Any, ...],
    target: torch.Tensor,
) -> tuple[tuple[Any, ...], Sequence[tuple[torch.Tensor, int]]]:
    """What was kept before the write, with the version and the shape that the result has after it."""
    if plan.gather is None:
        return kept, saved
    after = plan.gather(bound, target, {})
    holders = set(plan.tensor_positions)
    kept = tuple([old if i in holders else new for i, (old, new) in enumerate(zip(kept, after, strict=True))])
    results = [v for v, source in zip(kept, plan.sources, strict=True) if source is not None and source <= FROM_RESULT]
    return kept, [(t, t._version if any(t is r for r in results) else version) for t, version in saved]


def check_write(target: torch.Tensor, name: str) -> None:
    """Raise ``InPlaceError`` where torch forbids the write."""
    node = getattr(target, "_node", None)
    base: Any = target._base
    if isinstance(node, Leaf) or (type(target) is not Tensor and target.requires_grad):
        raise InPlaceError(
            f"{name}_ writes into a leaf of shape {tuple(target.shape)} that requires grad: its gradient would be that of a value it "
            f"no longer has. Write under torch.no_grad(), or into a copy."
        )
    stored = target if base is None else base
    if stored.layout is not torch.strided:
        raise UnsupportedError(
            f"{name}_ writes into a tensor of layout {stored.layout} and shape {tuple(stored.shape)}, or into its values: recording that "
            f"is not supported. Use the out-of-place op."
        )
    if base is None:
        return
    if isinstance(getattr(base, "_node", None), Leaf) or (type(base) is not Tensor and base.requires_grad):
        raise InPlaceError(
            f"{name}_ writes into a view, of shape {tuple(target.shape)}, of a leaf of shape {tuple(base.shape)} that requires grad. "
            f"Write under torch.no_grad(), or into a copy."
        )
    refused = getattr(target, "_refused", None)
    if refused is not None:
        raise InPlaceError(
            f"{name}_ writes into a view of shape {tuple(target.shape)} that {refused}. Use the out-of-place op."
        )


def rebase_missing(target: torch.Tensor, node: Node) -> None:
    """As the end of ``record``, for an in-place function without a rule, which has been run already."""
    name = node.op.rstrip("_")
    check_write(target, name)
    prepare(target, name)
    rewrite(target, node)
