"""Views and in-place writes: one memory, several tensors, each with the right history after every write.

A write through a view rewrites the history of the tensor whose memory it is (its *base*): the base is what it was, with the view's new
value in the view's region. Then every live view of the base reads its region of the new base. A write to the base itself does the
second part alone. So no history is ever stale, and using a tensor never needs a check.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch

from ops_registry.registry import TABLE
from ops_registry.shared.descriptors import dtype_of, is_conj, is_contiguous, is_neg, offset_of, shape_of, stride_of
from ops_registry.strided import write_region
from tracer.errors import InPlaceError, UnsupportedError
from tracer.graph import enter
from tracer.node import CallNode, Leaf, Node, RaisingNode
from tracer.recording.levels import level_numbers, levels, physical, shares_memory
from tracer.recording.saved import save
from tracer.recording.unseen_views import find_unseen
from tracer.tracked_tensor import Tensor, become_tracked

_READ = TABLE[torch.as_strided].rule
_WRITE = TABLE[write_region].rule


class WriteBan(Enum):
    """Why torch forbids to write into a view; the value completes the sentence "writes into a view that ..."."""

    ONE_OF_SEVERAL = "is one of several views that one call returned, which torch forbids to write into"
    OF_A_FUNCTION = "a custom Function returned, whose own backward the write would override"
    OF_A_COMPILED_MODULE = (
        "shares its memory with another result of a compiled module, which would not know of the write"
    )
    OF_A_BATCH = "torch.vmap returned, and that shows the memory of another tensor as another dtype, or conjugated"
    MADE_UNDER_NO_GRAD = "was made under no_grad, and is written with gradients enabled"


#: Views that torch forbids to use once the memory that they share has been written.
_STALE_AFTER_A_WRITE = (WriteBan.ONE_OF_SEVERAL, WriteBan.OF_A_FUNCTION)


def write_ban(tensor: Any) -> WriteBan | None:
    """Why the view may not be written into; None for one that may, and for what is no view."""
    return getattr(tensor, "_write_ban", None)


def ban_writes(view: Any, ban: WriteBan) -> None:
    """Let writes into ``view`` raise."""
    view._write_ban = ban


def _stale() -> Exception:
    return InPlaceError(
        "backward reached one of several views that one call returned (unbind, split, chunk), or a view that a custom Function returned, "
        "and the tensor that it shares memory with, or another of them, was written in place since: torch forbids to use it then. Use "
        "the out-of-place op; index the tensor instead, or return a clone from the Function."
    )


def note_view(view: torch.Tensor, base: Any, source: Any, several: bool = False) -> None:
    """Remember, on ``base``, whose memory it shares, that ``view`` exists; it was made from ``source``.

    ``several``: by a call that returned several. torch forbids to write into such views, and into views of them.
    """
    views = views_of(base)
    count = len(views)
    if count >= 8 and not count & (count - 1):
        views[:] = [v for v in views if v() is not None]  # at 8, 16, 32 …: at constant cost on average
    views.append(weakref.ref(view))
    ban = WriteBan.ONE_OF_SEVERAL if several else None if torch.is_grad_enabled() else WriteBan.MADE_UNDER_NO_GRAD
    ban = ban or write_ban(source)
    if ban is not None:
        ban_writes(view, ban)


def note_views(views: list[torch.Tensor], base: Any) -> None:
    """``note_view`` for all that one call returned, views of one base."""
    known = views_of(base)
    count = len(known)
    if count >= 8 and (count + len(views)).bit_length() > count.bit_length():
        known[:] = [v for v in known if v() is not None]
    known += map(weakref.ref, views)
    for view in views:
        ban_writes(view, WriteBan.ONE_OF_SEVERAL)


def base_of(tensor: Any) -> Any:
    """The tensor whose memory a view shares; None for what is no view."""
    base = tensor._base
    return getattr(tensor, "_base_in_level", None) if base is None and levels.open else base


def note_view_in_level(view: Any, source: Any, several: bool) -> None:
    """``note_view`` for a view inside a level of ``torch.vmap``, where torch itself does not say what is a view."""
    if isinstance(source, torch.Tensor) and shares_memory(view, source):
        base = base_of(source)
        base = view._base_in_level = source if base is None else base
        note_view(view, base, source, several)


def views_of(base: Any) -> list[weakref.ref[torch.Tensor]]:
    """The list of the views of ``base``: on a tracked tensor itself, beside a plain one (whose attributes are copied and saved with it)."""
    if type(base) is not Tensor:
        key = id(base)
        known = _of_plain.get(key)
        if known is None or known[0]() is not base:
            known = _of_plain[key] = weakref.ref(base, partial(_forget, key)), []
        return known[1]
    views = getattr(base, "_views", None)
    if views is None:
        views = base._views = []  # type: ignore[attr-defined]
    return views


#: The views of plain tensors, by the id of the tensor. (torch's dictionary with weak keys takes 2 us to look one up.)
_of_plain: dict[int, tuple[weakref.ref[torch.Tensor], list[weakref.ref[torch.Tensor]]]] = {}


def _forget(key: int, base: weakref.ref[torch.Tensor]) -> None:
    known = _of_plain.get(key)
    if known is not None and known[0] is base:
        del _of_plain[key]


def live_views(base: torch.Tensor) -> list[torch.Tensor]:
    """The views of ``base`` that are alive."""
    views: Any = getattr(base, "_views", ()) if isinstance(base, Tensor) else _views_of_plain(base)
    return [view for reference in views if (view := reference()) is not None]


def _views_of_plain(base: torch.Tensor) -> list[weakref.ref[torch.Tensor]]:
    known = _of_plain.get(id(base))
    return known[1] if known is not None and known[0]() is base else []


def prepare(target: torch.Tensor, name: str) -> None:
    """Before a write into ``target``: find the views that are concerned, and raise where their history cannot be rewritten.

    Raises ``UnsupportedError`` for a base whose elements may share memory, for views that show it as another dtype or conjugated, and for
    views that the user has made leaves.
    """
    base: Any = base_of(target)
    base = target if base is None else base
    if type(base) is not Tensor and not levels.open:
        unseen = [view for view in find_unseen(base, [target, *live_views(base)]) if view._base is base]
        if unseen:
            views_of(base).extend(map(weakref.ref, unseen))
    views = live_views(base)
    if base is target and not views:
        return
    if base is not target and all(v is not target for v in views):
        views_of(base).append(weakref.ref(target))
        views.append(target)
    if not _is_dense(base) and (_may_overlap(base) or _without_gaps(base, target) is None):
        raise UnsupportedError(
            f"{name}_ writes into memory that views share, of a tensor of shape {tuple(base.shape)} and strides {base.stride()} that has "
            f"overlaps, or gaps that the view reaches into: recording that is not supported. Use the out-of-place op, or write into "
            f"base.contiguous()."
        )
    if _may_overlap(target):
        raise UnsupportedError(
            f"{name}_ writes into a view of shape {tuple(target.shape)} and strides {target.stride()} whose elements may share memory: "
            f"recording that is not supported. Use the out-of-place op."
        )
    dtype, conj, neg = dtype_of(base), is_conj(base), is_neg(base)
    for view in views:
        if dtype_of(view) is not dtype or is_conj(view) != conj or is_neg(view) != neg:
            raise UnsupportedError(
                f"{name}_ writes into memory that a live view of shape {tuple(view.shape)} shows as {view.dtype}"
                f"{' conjugated' if view.is_conj() else ''}: recording that is not supported. Drop the view, or use the out-of-place op."
            )
        if isinstance(getattr(view, "_node", None), Leaf):
            raise UnsupportedError(
                f"{name}_ writes into memory that a live view of shape {tuple(view.shape)} shares, and that view was made a leaf "
                f"requiring grad. Use the out-of-place op."
            )


def rewrite(target: torch.Tensor, node: Node) -> None:
    """After a write: ``node`` is the history of the new value of ``target``; give base and views theirs."""
    base: Any = base_of(target)
    if base is None:
        rebase(target, node)
        base = target
    else:
        old = getattr(base, "_node", None)
        parents = (node,) if old is None else (old, node)
        plan = _WRITE.plan(0b10 if old is None else 0b11)
        bound: Any = (base, target, tuple(shape_of(target)), stride_of(target), offset_of(target))
        if not _is_dense(base):
            bound = _without_gaps(base, target)
        saved = save(plan, bound, base, {})
        rebase(base, enter(CallNode(plan, parents, shape_of(base), dtype_of(base), *saved), base))
    for view in live_views(base):
        if view is not target and write_ban(view) in _STALE_AFTER_A_WRITE:
            _make_stale(view, base._node)
            continue
        plan = _READ.plan(1)
        shape = shape_of(view)
        bound = (base, tuple(shape), stride_of(view), offset_of(view))
        saved = save(plan, bound, view, {})
        rebase(view, enter(CallNode(plan, (base._node,), shape, dtype_of(view), *saved), view))


def written_unrecorded(target: torch.Tensor) -> None:
    """After a write that left no node: as in torch, one of several views of one call may not be used after any write to its memory."""
    base: Any = base_of(target)
    base = target if base is None else base
    if type(base) is Tensor and not getattr(base, "_views", None):
        return
    for view in live_views(base):
        node = getattr(view, "_node", None)
        if node is not None and write_ban(view) in _STALE_AFTER_A_WRITE:
            _make_stale(view, node)


def _make_stale(view: torch.Tensor, node: Node) -> None:
    """Let backward raise when it comes to ``view``, on its way to ``node``."""
    rebase(view, enter(RaisingNode("stale_view", _stale, (node,), view.shape, view.dtype)))


def rebase(target: torch.Tensor, node: Node) -> None:
    """Let ``node`` be the history of ``target`` from now on."""
    old = getattr(target, "_node", None)
    if type(target) is not Tensor:
        views = _views_of_plain(target)
        _of_plain.pop(id(target), None)
        become_tracked(target)._views = views  # type: ignore[attr-defined]
    if old is not None and old.extras is not None and old.extras.retain is not None:
        # retain_grad follows the tensor; hooks stay with the value that they saw.
        node.extra().retain, old.extras.retain = old.extras.retain, None
    target._node = node  # type: ignore[attr-defined]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether every element of the tensor's stretch of memory belongs to exactly one index."""
    if is_contiguous(tensor):
        return True
    expected = 1
    for stride, size in sorted(zip(stride_of(tensor), shape_of(tensor), strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _without_gaps(base: torch.Tensor, view: torch.Tensor) -> tuple[Any, ...] | None:
    """The arguments of the write of ``view`` into ``base``, as without gaps in the base's memory; None where the view reaches there.

    An argument of a vmapped function has gaps where its batch does not go along the dimension of the largest stride.
    """
    blocks: list[tuple[int, int]] = []  # stride and size of what lies side by side, largest stride first
    for stride, size in sorted(zip(base.stride(), base.shape, strict=True), reverse=True):
        if blocks and blocks[-1][0] == stride * size:
            blocks[-1] = (stride, blocks[-1][1] * size)
        elif size != 1:
            blocks.append((stride, size))
    sizes = [size for _, size in blocks]
    dense = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def digits(distance: Any) -> list[int]:
        """How far a step of ``distance`` goes along each block, and what is left."""
        found = []
        for stride, _ in blocks:
            steps, distance = divmod(distance, stride)
            found.append(steps)
        return [*found, distance]

    offset = offset_of(view) - offset_of(base)
    if offset < 0:
        return None
    steps = [digits(s if n != 1 else 0) for s, n in zip(view.stride(), view.shape, strict=True)]
    first = digits(offset)
    last = [f + sum((n - 1) * s[i] for n, s in zip(view.shape, steps, strict=True)) for i, f in enumerate(first)]
    if view.numel() and (last[-1] or any(position >= size for position, size in zip(last, sizes, strict=False))):
        return None

    def address(position: list[int]) -> int:
        return sum(p * d for p, d in zip(position, dense, strict=False))

    strides = [address(digits(s if n != 1 else 0)) for s, n in zip(base.stride(), base.shape, strict=True)]
    like_base = torch.empty_strided(base.shape, strides, device="meta")
    return like_base, view, tuple(view.size()), tuple([address(s) for s in steps]), address(first)


def _may_overlap(tensor: torch.Tensor) -> bool:
    """Whether two indices may show one element."""
    return not is_contiguous(tensor) and is_overlapping(shape_of(tensor), stride_of(tensor))


def is_overlapping(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """The same for a tensor of this shape: no, if each stride steps over all that the smaller ones reach."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def find_views_in_level(target: torch.Tensor) -> None:
    """Before a write inside a level of ``torch.vmap``: note unseen views there, where the base is to be found too.

    Raises ``UnsupportedError`` where views of a base that is gone share its memory.
    """
    beneath = physical(target)
    root: torch.Tensor = beneath if beneath._base is None else beneath._base
    base = base_of(target)
    known = [target] if base is None else [target, base, *live_views(base)]
    found = find_unseen(root, known)
    if not found:
        return
    numbers = level_numbers(target)
    views = []
    tensors: list[Any] = [*known, *found]
    for tensor in tensors:
        if level_numbers(tensor) == numbers:
            if physical(tensor) is root:
                base = tensor
            else:
                views.append(tensor)
    if base is None and len(views) > 1:
        raise UnsupportedError(
            f"a write into a view of shape {tuple(target.shape)}, inside torch.vmap, of a tensor that is gone and that other views share: "
            f"recording that is not supported. Write into a clone."
        )
    if base is not None:
        for view in views:
            if base_of(view) is None:
                view._base_in_level = base
            if all(view is not noted for noted in live_views(base)):
                views_of(base).append(weakref.ref(view))
