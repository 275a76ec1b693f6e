"""Filling ``.grad``: the last step of backward, done when the sweep has come through."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.shared.descriptors import layout_of, stride_of
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    TensorBase,
    set_grad_enabled,
    storage_use_count,
    use_count,
)
from tracer.errors import InPlaceError, UnsupportedError
from tracer.node import Node
from tracer.tracked_tensor import become_tracked, plain_alias

#: A tensor and its gradient. The gradient lies in a list of one, which is emptied when it is taken, so that its reference count
#: tells whether anybody else knows it.
Entry = tuple[torch.Tensor, list[torch.Tensor]]

_PLAIN = torch.Tensor
_GRAD: Any = torch.Tensor.grad
_get_grad = _GRAD.__get__
_is_contiguous: Any = torch.Tensor.is_contiguous
_has_no_overlap: Any = torch.ops.aten.is_non_overlapping_and_dense.default
_accumulating = threading.Lock()


class _Aside(threading.local):
    """What ``.grad`` was, of the tensors that this thread has filled for a time only; None: it fills them for good."""

    before: dict[torch.Tensor, torch.Tensor | None] | None = None


_aside = _Aside()


@contextmanager
def leaving_grad_alone() -> Iterator[dict[torch.Tensor, torch.Tensor]]:
    """What passes of this thread put into ``.grad`` inside the block, those inside a checkpoint, is taken out of it again at its end.

    The dictionary has each tensor and its gradient then.
    """
    outer = _aside.before
    _aside.before = before = dict[torch.Tensor, torch.Tensor | None]()
    found: dict[torch.Tensor, torch.Tensor] = {}
    try:
        yield found
    finally:
        _aside.before = outer
        with DisableTorchFunctionSubclass():
            for tensor, grad in before.items():
                made = _GRAD.__get__(tensor)
                if made is not None:
                    found[tensor] = made
                _GRAD.__set__(tensor, grad)


def grad_is_left_alone() -> bool:
    """Whether this thread is inside ``leaving_grad_alone``."""
    return _aside.before is not None


def accumulate(entries: Sequence[Entry]) -> None:
    """Add each gradient to the tensor's ``.grad``, in place where there is one; no other thread adds at the same time.

    Raises ``InPlaceError`` where one cannot be written, before any is.
    """
    mode, aside = torch.is_grad_enabled(), _aside.before
    with DisableTorchFunctionSubclass(), _accumulating:
        if aside is None:
            check_writable([tensor for tensor, _ in entries])
        set_grad_enabled(False)
        try:
            for tensor, buffer in entries:
                if buffer[0].layout is not torch.strided:
                    _fit_layout(tensor, buffer)
                if aside is not None and tensor not in aside:
                    aside[tensor] = _GRAD.__get__(tensor)
                    _GRAD.__set__(tensor, None)
                before = _GRAD.__get__(tensor)
                if before is None:
                    _set(tensor, own(buffer, tensor))
                elif (
                    before.requires_grad
                    or before.layout not in (torch.strided, buffer[0].layout)
                    or not _has_sum(before)
                ):
                    _set(tensor, plus(before, buffer.pop()))
                else:
                    before.add_(buffer.pop())
        finally:
            set_grad_enabled(mode)


def check_writable(tensors: Sequence[torch.Tensor]) -> None:
    """Raise ``InPlaceError`` for a ``.grad`` whose elements share memory (``expand``): nothing can be added there. Interception is off."""
    for tensor, grad in zip(tensors, map(_get_grad, tensors), strict=True):
        if grad is None or grad.layout is not torch.strided or _is_contiguous(grad) or grad.requires_grad:
            continue
        if any(step == 0 and size > 1 for size, step in zip(grad.shape, grad.stride(), strict=True)):
            raise InPlaceError(
                f".grad of a leaf of shape {tuple(tensor.shape)} is a tensor of strides {grad.stride()}, several elements of which share "
                f"memory (expand): a gradient cannot be added there, and none was. Put a copy there (x.grad = x.grad.clone())."
            )


def accumulate_recorded(entries: Iterable[Entry]) -> None:
    """As ``accumulate``, under ``create_graph``: the gradients stay differentiable, so nothing is written in place or taken over."""
    for tensor, buffer in entries:
        _fit_layout(tensor, buffer)
        before, grad = tensor.grad, buffer.pop()
        total = grad.clone() if before is None else plus(before, grad)
        if _takes(tensor, total):
            tensor.grad = total
        else:
            with DisableTorchFunctionSubclass():
                _set(tensor, plain_alias(total))
                # The gradient that torch has just made belongs to nobody else: it gets the history of ours.
                become_tracked(_GRAD.__get__(tensor), getattr(total, "_node", None))


def plus(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients of one tensor, in whatever layouts they came: that of a dense and a sparse one is dense.

    Raises ``UnsupportedError`` for two of a sparse layout that torch cannot add, or adds wrongly.
    """
    if left.layout is torch.strided:
        return left + right
    if right.layout is torch.strided:
        return right + left  # torch takes them in this order only
    if not _has_sum(left) or left.layout is not right.layout:
        raise UnsupportedError(
            f"two gradients of a sparse tensor of shape {tuple(left.shape)}, of layouts {left.layout} and {right.layout}, are to be added, "
            f"and torch has no sum of such. Use the tensor once, or make it dense first (to_dense())."
        )
    return left + right


def add_up(grads: dict[Node, Any], node: Node, grad: torch.Tensor) -> torch.Tensor:
    """Make what ``grads`` has at ``node`` the sum of that and ``grad``: where it lies, as in torch, if nobody else knows it."""
    before = grads[node]
    # Three know it: the dictionary, this frame, and the question itself.
    known = sys.getrefcount(before) > 3 or type(before) is not _PLAIN or not _owns_memory(before)
    # torch adds no rows of a sparse matrix to a dense one in another order.
    if not known and (grad.layout is torch.strided or before.is_contiguous()):
        return before.add_(grad)
    total = grads[node] = plus(before, grad)
    return total


def _owns_memory(grad: torch.Tensor) -> bool:
    """Whether each element has memory of its own, and no view, no alias, and nothing in C++ knows of it.

    It may be a view itself, ``mm(...).t()``, of a tensor that only this view still holds.
    """
    if grad.layout is not torch.strided or use_count(grad) != 1:
        return False
    is_view = grad._is_view()
    if storage_use_count(grad) != 1 + is_view or (is_view and _holders_of_base(grad) != _ITS_VIEW_ALONE):
        return False
    return grad.is_contiguous() or _has_no_overlap(grad)


def _holders_of_base(view: torch.Tensor) -> tuple[int, int]:
    """How many in Python and how many in C++ hold the tensor that ``view`` is a view of, this question included."""
    base = view._base
    assert base is not None
    return sys.getrefcount(base), use_count(base)


#: What that is where only the view holds it: whether torch's own hold counts as one of Python's depends on its version.
_ITS_VIEW_ALONE = _holders_of_base(torch.empty(1).view(1))


def _has_sum(tensor: torch.Tensor) -> bool:
    """Whether torch can add another of its layout to it: for CSR single matrices only, in a batch the sum has the entries of none."""
    if tensor.layout is torch.sparse_csr:
        return tensor.dim() - tensor.dense_dim() == 2
    return tensor.layout not in (torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _fit_layout(tensor: torch.Tensor, buffer: list[torch.Tensor]) -> None:
    """Make the gradient of a dense tensor dense where it came in a layout that ``.grad`` cannot have: torch takes coordinates only."""
    if tensor.layout is torch.strided and buffer[0].layout not in (torch.strided, torch.sparse_coo):
        buffer[0] = buffer[0].to_dense()


def _takes(tensor: torch.Tensor, grad: torch.Tensor) -> bool:
    """Whether torch lets ``grad`` be assigned to ``tensor.grad``."""
    layout = layout_of(tensor)
    return layout is torch.strided or grad.layout is layout


def _set(tensor: torch.Tensor, grad: torch.Tensor) -> None:
    if _takes(tensor, grad):
        _GRAD.__set__(tensor, grad)
        return
    # torch's own accumulation gives a sparse tensor a dense .grad, which the setter refuses: let torch accumulate.
    if getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None):
        raise UnsupportedError(
            f"a sparse tensor of torch's own autograd, of shape {tuple(tensor.shape)} and with hooks, got a gradient of layout "
            f"{grad.layout}. Track it (tracer.track)."
        )
    native = TensorBase.requires_grad.__get__(tensor)  # type: ignore[attr-defined]
    _GRAD.__set__(tensor, None)
    TensorBase.requires_grad_(tensor, True)
    try:
        torch.autograd.backward(tensor, grad)
    finally:
        TensorBase.requires_grad_(tensor, native)


def own(buffer: list[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """The gradient in ``buffer`` as memory that belongs to nobody else, laid out as torch lays out ``.grad``: like a dense tensor itself.

    Taken as it is when neither the object nor its storage is known to anyone; otherwise copied.
    """
    grad = buffer.pop()
    alone = sys.getrefcount(grad) <= 2 and type(grad) is _PLAIN
    if grad.layout is not torch.strided:
        return grad if alone and _owns_values(grad) else grad.clone()
    if layout_of(tensor) is not torch.strided:
        return grad if alone and storage_use_count(grad) == 1 else grad.clone()
    dense = _is_contiguous(tensor) or _has_no_overlap(tensor)
    if (
        alone
        and (grad.stride() == stride_of(tensor) if dense else grad.is_contiguous())
        and storage_use_count(grad) == 1
    ):
        return grad
    if dense:
        return torch.empty_like(tensor, requires_grad=False).copy_(grad)
    return plain_alias(grad.clone(memory_format=torch.contiguous_format))


def _owns_values(sparse: torch.Tensor) -> bool:
    """Whether nobody else knows the memory of its values: known of the coordinate layout only, whose ``_values()`` is one more user."""
    return sparse.layout is torch.sparse_coo and storage_use_count(sparse._values()) == 2
