"""TorchScript, whose calls never reach interception.

torch would run them on a tracked tensor and record nothing: a cut without a word. Each is recorded as one opaque call here: torch's own
autograd runs it, and our sweep asks it for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ops_registry.torch_private import ScriptFunction, ScriptMethod
from tracer.fallback import record_with_torch
from tracer.tensor import Tensor


def _wants_gradient(nest: Any) -> bool:
    """Whether a tracked tensor that requires grad stands in a nest of arguments."""
    if type(nest) is Tensor:
        return nest._node is not None
    if isinstance(nest, dict):
        nest = nest.values()
    elif not isinstance(nest, tuple | list):
        return False
    return any(_wants_gradient(value) for value in nest)


def _recording(call: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and _wants_gradient((args, kwargs)):
            return record_with_torch(lambda *a, **k: call(self, *a, **k), args, kwargs, self.name)
        return call(self, *args, **kwargs)

    return recorded


ScriptFunction.__call__ = _recording(ScriptFunction.__call__)
ScriptMethod.__call__ = _recording(ScriptMethod.__call__)
