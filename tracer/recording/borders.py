"""Calls that never reach interception: of sparse constructors, and those that a nested tensor answers.

torch would run them on a tracked tensor and record nothing: a cut without a word. A sparse constructor lets itself be intercepted. A nested
tensor beside one that requires grad raises. ``tracer.install`` puts these in the place of torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tracer.errors import UnsupportedError
from tracer.tracked_tensor import Tensor


def _wants_gradient(nest: Any) -> bool:
    """Whether a tracked tensor that requires grad stands in a nest of arguments."""
    if type(nest) is Tensor:
        return nest._node is not None
    if isinstance(nest, dict):
        nest = nest.values()
    elif not isinstance(nest, tuple | list):
        return False
    return any(_wants_gradient(value) for value in nest)


#: torch's constructors of sparse tensors, with the position of the values among their arguments.
SPARSE_CONSTRUCTORS = {
    "sparse_coo_tensor": 1,
    "sparse_compressed_tensor": 2,
    "sparse_csr_tensor": 2,
    "sparse_csc_tensor": 2,
    "sparse_bsr_tensor": 2,
    "sparse_bsc_tensor": 2,
}


def intercepted(construct: Callable[..., Any], position: int) -> Callable[..., Any]:
    """A sparse constructor that lets the class of its values intercept the call, as torch's own does not."""

    @functools.wraps(construct)
    def constructed(*args: Any, **kwargs: Any) -> Any:
        values = kwargs.get("values", args[position] if len(args) > position else None)
        if not has_torch_function((values,)):
            return construct(*args, **kwargs)
        wanted = kwargs.pop("requires_grad", False)
        made = handle_torch_function(construct, (values,), *args, **kwargs)
        return made.requires_grad_() if wanted and not made.requires_grad else made

    return constructed


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
