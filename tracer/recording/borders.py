"""Calls that never reach interception: of TorchScript, and of sparse constructors.

torch would run them on a tracked tensor and record nothing: a cut without a word. TorchScript is recorded as one opaque call here: torch's
own autograd runs it, and our sweep asks it for the gradients. A sparse constructor lets itself be intercepted. ``tracer.install`` puts
these in the place of torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tracer.recording.fallback import record_with_torch
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


def recording_script(call: Callable[..., Any]) -> Callable[..., Any]:
    """The ``__call__`` of compiled code, which records a call on tracked tensors as one opaque call."""

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and _wants_gradient((args, kwargs)):
            return record_with_torch(lambda *a, **k: call(self, *a, **k), args, kwargs, self.name)
        return call(self, *args, **kwargs)

    return recorded


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
