"""Leaves that were tracked in place after torch had recorded uses of them: what those uses hand back would be lost without a word."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase
from tracer.errors import UnsupportedError

_requires_grad_natively: Any = TensorBase.requires_grad.__get__  # type: ignore[attr-defined]
_KEY = "glassgrad: used before it was tracked"
#: The leaves of which torch may still hold uses, by id.
_leaves = weakref.WeakValueDictionary[int, torch.Tensor]()


def guard_earlier_uses(leaf: torch.Tensor) -> None:
    """Let a gradient that torch hands back to ``leaf``, a leaf of its own that is about to be tracked, raise ``UnsupportedError``.

    torch drops it otherwise, since natively ``leaf`` will no longer require grad. To be called where interception is off.
    """
    # torch keeps the node at which gradients of a leaf arrive only as long as a recorded use does: a mark that is still there when the
    # node is asked for again tells that there is one.
    _arrival(leaf).metadata[_KEY] = True
    node = _arrival(leaf)
    if _KEY not in node.metadata:
        return
    _leaves[id(leaf)] = leaf
    known = weakref.ref(leaf)

    def arrived(grads: tuple[torch.Tensor, ...]) -> None:
        tensor = known()
        if tensor is not None and _is_lost_on(tensor):
            raise _used_before(tensor)

    node.register_prehook(arrived)


def was_used_earlier(place: Any) -> bool:
    """Whether ``place`` is a leaf of which torch may hold a use that it had recorded before the leaf was tracked."""
    return id(place) in _leaves and _is_lost_on(place)


def check_earlier_uses(roots: Iterable[Any]) -> None:
    """Raise ``UnsupportedError`` if one of ``roots``, nodes of torch's, leads to a use of a leaf that was tracked since."""
    if not _leaves:
        return
    for leaf in native_leaves(roots):
        if was_used_earlier(leaf):
            raise _used_before(leaf)


def native_leaves(roots: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The leaves to which ``roots``, nodes of torch's own autograd, lead."""
    ahead = list(roots)
    seen = set(ahead)
    while ahead:
        node = ahead.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        ahead += new


def _arrival(tensor: torch.Tensor) -> Any:
    """torch's node at which the gradient of ``tensor`` arrives."""
    return get_gradient_edge(tensor).node


def _is_lost_on(tensor: Any) -> bool:
    """Whether torch would drop a gradient of ``tensor`` that wants one; while the tensor is torch's own for a time, it takes it."""
    with DisableTorchFunctionSubclass():
        return tensor._node is not None and not _requires_grad_natively(tensor)


def _used_before(tensor: torch.Tensor) -> UnsupportedError:
    return UnsupportedError(
        f"a leaf of shape {tuple(tensor.shape)} was used before it was tracked, and backward has come to that use, which only torch's own "
        f"autograd has recorded: its gradient would be lost. Track parameters before the forward pass (nn.track(model) right after the "
        f"model is made), or call backward before they are tracked."
    )
