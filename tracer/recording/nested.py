"""Nested tensors beside tracked ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tracer.errors import UnsupportedError
from tracer.tracked_tensor import Tensor


def _wants_gradient(nest: Any) -> bool:
    """Whether a tracked tensor that requires grad stands in a nest of arguments."""
    return any(type(value) is Tensor and value._node is not None for value in tree_leaves(nest))


def refusing_tracked(intercept: Callable[..., Any]) -> Any:
    """The ``__torch_function__`` of nested tensors, which raises where a tracked tensor beside them would lose its gradient."""

    def refused(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_grad_enabled() and _wants_gradient((args, kwargs)):
            raise UnsupportedError(
                f"{getattr(func, '__name__', func)}() was called with a nested tensor and a tracked one that requires grad, which would "
                f"lose its gradient: nested tensors are not supported. Pad them (to_padded_tensor), or leave all to torch's own autograd."
            )
        return intercept(func, types, args, kwargs)

    return classmethod(refused)
