"""Filling ``.grad``: the last step of backward, done when the sweep has come through."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, set_grad_enabled, storage_use_count
from tracer.tensor import plain_alias

#: A tensor and its gradient. The gradient lies in a list of one, which is emptied when it is taken, so that its reference count
#: tells whether anybody else knows it.
Entry = tuple[torch.Tensor, list[torch.Tensor]]

_PLAIN = torch.Tensor
_GRAD: Any = torch.Tensor.grad
_accumulating = threading.Lock()


def accumulate(entries: Iterable[Entry]) -> None:
    """Add each gradient to the tensor's ``.grad``, in place where there is one; no other thread adds at the same time."""
    mode = torch.is_grad_enabled()
    with DisableTorchFunctionSubclass(), _accumulating:
        set_grad_enabled(False)
        try:
            for tensor, buffer in entries:
                before = _GRAD.__get__(tensor)
                if before is None:
                    _GRAD.__set__(tensor, _own(buffer, tensor))
                elif before.requires_grad or before.layout is not buffer[0].layout:
                    _GRAD.__set__(tensor, before + buffer.pop())
                else:
                    before.add_(buffer.pop())
        finally:
            set_grad_enabled(mode)


def accumulate_recorded(entries: Iterable[Entry]) -> None:
    """As ``accumulate``, under ``create_graph``: the gradients stay differentiable, so nothing is written in place or taken over."""
    for tensor, buffer in entries:
        before, grad = tensor.grad, buffer.pop()
        tensor.grad = grad.clone() if before is None else before + grad


def zero_grad_of(tensor: torch.Tensor, set_to_none: bool) -> None:
    """Clear ``.grad`` of a tensor, tracked or not: drop it, or fill it with zeros in place, without a history."""
    if not tensor.is_leaf and not tensor.retains_grad:
        return  # it has none, and torch warns of the question
    gradient = tensor.grad
    if gradient is None or set_to_none:
        tensor.grad = None
        return
    if gradient.requires_grad:
        gradient = tensor.grad = gradient.detach()
    gradient.zero_()


def _own(buffer: list[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """The gradient in ``buffer`` as memory that belongs to nobody else, laid out as torch lays out ``.grad``: like a dense tensor itself.

    Taken as it is when neither the object nor its storage is known to anyone; otherwise copied.
    """
    grad = buffer.pop()
    alone = sys.getrefcount(grad) <= 2 and type(grad) is _PLAIN
    if grad.layout is not torch.strided:
        return grad if alone else grad.clone()
    dense = tensor.is_contiguous() or tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    if alone and (grad.stride() == tensor.stride() if dense else grad.is_contiguous()) and storage_use_count(grad) == 1:
        return grad
    if dense:
        return torch.empty_like(tensor, requires_grad=False).as_subclass(_PLAIN).copy_(grad)
    return plain_alias(grad.clone(memory_format=torch.contiguous_format))
