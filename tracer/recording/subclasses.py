"""Other people's tensor subclasses among the arguments of a call."""

from __future__ import annotations

import functools

import torch

from tracer.tracked_tensor import Tensor

#: The ``__torch_function__`` of classes that intercept nothing.
_DEFAULT_TORCH_FUNCTIONS = (
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
    torch.nn.Parameter.__torch_function__,
)


@functools.cache
def is_foreign(kind: type) -> bool:
    """Whether a class intercepts calls in a way of its own, so that the call is for it to answer."""
    theirs = getattr(kind, "__torch_function__", None)
    return not issubclass(kind, Tensor) and getattr(theirs, "__func__", theirs) not in _DEFAULT_TORCH_FUNCTIONS
