"""Saved-tensor hooks: what is saved for backward goes through the user's ``pack`` and comes back through ``unpack``.

The hooks are torch's own (``torch.autograd.graph.saved_tensors_hooks``, ``save_on_cpu``, and with them ``torch.utils.checkpoint``), one
stack for both engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ops_registry.torch_private import EnableTorchFunction
from tracer.errors import SavedTensorHookError
from tracer.tracked_tensor import Tensor, plain_alias

Hooks = tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]


class Packed:
    """One saved tensor, as ``pack`` returned it."""

    __slots__ = ("unpack_hook", "value")

    def __init__(self, tensor: torch.Tensor, hooks: Hooks) -> None:
        pack_hook, self.unpack_hook = hooks
        # As in torch the hook sees a tensor without history, and nothing it does is recorded.
        seen = plain_alias(tensor)
        version = seen._version
        with EnableTorchFunction(), torch.no_grad():
            self.value = pack_hook(seen)
        if seen._version != version:
            raise SavedTensorHookError(
                f"a pack hook wrote in place into the tensor of shape {tuple(seen.shape)} that it was given to pack. Write into a clone."
            )

    def unpack(self) -> torch.Tensor:
        """The tensor again: a plain alias of what ``unpack`` returned."""
        tensor = self.unpack_hook(self.value)
        if not isinstance(tensor, torch.Tensor):
            raise SavedTensorHookError(f"an unpack hook returned {type(tensor).__name__}, and has to return a tensor")
        return plain_alias(tensor) if type(tensor) is Tensor or tensor.requires_grad else tensor


def pack(value: Any, hooks: Hooks) -> Any:
    """A nest of saved values with every tensor packed."""
    if isinstance(value, torch.Tensor):
        return Packed(value, hooks)
    if type(value) is tuple or type(value) is list:
        return type(value)([pack(v, hooks) for v in value])
    return value


def unpack_nest(value: Any) -> Any:
    """The inverse of ``pack``."""
    if type(value) is Packed:
        return value.unpack()
    if type(value) is tuple or type(value) is list:
        return type(value)([unpack_nest(v) for v in value])
    return value
