"""Tracked tensors that are torch's own for a while: where torch's tracers and compiled code are to see parameters that require grad."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tracer.tracked_tensor import Tensor, become_tracked, is_parameter

_lock = threading.Lock()
#: How many blocks hold a tensor as torch's own, by its id: the last one to end gives it back.
_holders: dict[int, int] = {}


@contextmanager
def as_native(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside the block the tracked ones among ``tensors`` are of torch's own class and require grad natively, if they require grad.

    They stay the same objects and keep their nodes. Several threads may hold one tensor at the same time.
    """
    held = {id(tensor): tensor for tensor in tensors if type(tensor) is Tensor or id(tensor) in _holders}
    with _lock:
        for key, tensor in held.items():
            _holders[key] = _holders.get(key, 0) + 1
            if type(tensor) is Tensor:
                _make_native(tensor)
    try:
        yield
    finally:
        with _lock:
            for key, tensor in held.items():
                _holders[key] -= 1
                if not _holders[key]:
                    del _holders[key]
                    tensor.requires_grad = False
                    become_tracked(tensor)


def _make_native(tensor: Any) -> None:
    wanted = tensor._node is not None
    tensor.__class__ = torch.nn.Parameter if is_parameter(tensor) else torch.Tensor
    tensor.requires_grad = wanted
