"""Nested tensors beside tracked ones that require grad: refused at the call, where a gradient would be lost.

A nested tensor in the jagged layout answers every call that it takes part in; one in the strided layout has no shape to record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from tracer.errors import UnsupportedError
from tracer.recording.parents import holds_tracked

#: What users call, where an error would name something inside torch.
_PUBLIC_NAMES = {
    "_nested_tensor_from_tensor_list": "torch.nested.as_nested_tensor",
    "_nested_view_from_buffer": "torch.nested.as_nested_tensor",
    "_nested_view_from_jagged": "torch.nested (as_nested_tensor, narrow, masked_select, nested_tensor_from_jagged)",
}


def refuse_nested(func: Callable[..., Any] | str) -> NoReturn:
    """Raise ``UnsupportedError`` for a call of ``func`` with a nested tensor and one that requires grad."""
    name = func if isinstance(func, str) else getattr(func, "__name__", str(func))
    raise UnsupportedError(
        f"{_PUBLIC_NAMES.get(name, name)} was called with a nested tensor, or to make one, and a tracked tensor that requires grad, which "
        f"would lose its gradient: nested tensors are not recorded. Pad instead (torch.nn.utils.rnn.pad_sequence, and a mask), detach the "
        f"tracked tensor, or leave all of it to torch's own autograd."
    )


def refusing_tracked(intercept: Callable[..., Any]) -> Any:
    """The ``__torch_function__`` of nested tensors, which raises where a tracked tensor beside them would lose its gradient."""

    def refused(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_grad_enabled() and holds_tracked((args, kwargs)):
            refuse_nested(func)
        return intercept(func, types, args, kwargs)

    return classmethod(refused)
