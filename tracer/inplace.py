"""In-place writes: the value changes in the tensor itself, its history gets a new node, the rule is that of the op."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ops_registry.registry import Spelling
from ops_registry.torch_private import set_grad_enabled
from tracer.errors import InPlaceError, UnsupportedError
from tracer.graph import enter
from tracer.keeping import keep
from tracer.node import Leaf, Node
from tracer.parents import DIFFERENTIABLE, find_parents
from tracer.tensor import Tensor, plain_alias


def is_in_place(func: Callable[..., Any]) -> bool:
    """Whether the name of a torch function says that it writes into its first argument."""
    name = getattr(func, "__name__", "")
    return name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))


def note_view(view: torch.Tensor) -> None:
    """Remember, on the tensor whose memory it shares, that ``view`` exists."""
    base: Any = view._base
    views = getattr(base, "_views", None)
    if views is None:
        base._views = [weakref.ref(view)]
    else:
        if (
            len(views) >= 8 and len(views) & (len(views) - 1) == 0
        ):  # at 8, 16, 32 …: dead ones go, at constant cost on average
            views[:] = [v for v in views if v() is not None]
        views.append(weakref.ref(view))


def _alive(views: list[weakref.ref[torch.Tensor]]) -> list[torch.Tensor]:
    found = [v() for v in views]
    return [v for v in found if v is not None]


def record(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an in-place call and record it under the rule of the out-of-place op. Interception is off."""
    rule = spelling.rule
    bound = spelling.bind(args, kwargs)
    target = bound[spelling.target]
    mask, parents = 0, ()
    if torch.is_grad_enabled() and target.dtype in DIFFERENTIABLE:
        mask, parents, _ = find_parents(rule, bound)
    if not mask:
        return func(*args, **kwargs)
    check_write(target, rule.name)
    variant = rule.variant(mask)
    # The op may read what it overwrites: an alias tells the old shape, a copy the old values where the rule wants them.
    before = plain_alias(target)
    if rule.signature.names[spelling.target] in variant.kept:
        before = before.clone()
    set_grad_enabled(False)
    try:
        extra: dict[str, Any] = {}
        if rule.forward is not None:
            result, extra = rule.forward(*bound)
            target.copy_(result)
        else:
            func(*args, **kwargs)
    finally:
        set_grad_enabled(True)
    kept, saved = keep(variant, (*bound[: spelling.target], before, *bound[spelling.target + 1 :]), target, extra)
    node = enter(Node(variant, parents, target.shape, target.dtype, kept, saved))
    rebase(target, node)
    return None if func is torch.Tensor.__setitem__ else target


def check_write(target: torch.Tensor, name: str) -> None:
    """Raise where torch forbids the write, and where its effect on the history of views is not supported."""
    node = getattr(target, "_node", None)
    base: Any = target._base
    base_node = getattr(base, "_node", None) if base is not None else None
    if isinstance(node, Leaf) or (type(target) is not Tensor and target.requires_grad):
        raise InPlaceError(
            f"{name}_ writes into a leaf of shape {tuple(target.shape)} that requires grad: its gradient would be that of a value it "
            f"no longer has. Write under torch.no_grad(), or into a copy."
        )
    if isinstance(base_node, Leaf):
        raise InPlaceError(
            f"{name}_ writes into a view, of shape {tuple(target.shape)}, of a leaf of shape {tuple(base.shape)} that requires grad. "
            f"Write under torch.no_grad(), or into a copy."
        )
    if base is not None:
        raise UnsupportedError(
            f"{name}_ writes through a view of shape {tuple(target.shape)} into a tensor of shape {tuple(base.shape)}: recording that is "
            f"not supported yet. Write into the tensor itself (x[i] = ..., x.{name}_(...)) or use the out-of-place op."
        )
    views = [v for v in _alive(getattr(target, "_views", [])) if v is not target]
    if views:
        raise UnsupportedError(
            f"{name}_ writes into a tensor of shape {tuple(target.shape)} of which {len(views)} view(s) are alive, the first of shape "
            f"{tuple(views[0].shape)}: recording that is not supported yet. Drop the views first, or use the out-of-place op."
        )


def rebase(target: torch.Tensor, node: Node) -> None:
    """Let ``node`` be the history of ``target`` from now on."""
    old = getattr(target, "_node", None)
    if type(target) is not Tensor:
        target.__class__ = Tensor
    if old is not None and old.extras is not None and old.extras.retain is not None:
        # retain_grad follows the tensor; hooks stay with the value that they saw.
        node.extra().retain, old.extras.retain = old.extras.retain, None
    target._node = node  # type: ignore[attr-defined]


def rebase_missing(target: torch.Tensor, node: Node) -> None:
    """As ``rebase``, for an in-place function without a rule, which has been run already."""
    check_write(target, node.op.rstrip("_"))
    rebase(target, node)
