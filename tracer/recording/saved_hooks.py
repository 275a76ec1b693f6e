"""Saved-tensor hooks: what is saved for backward goes through the user's ``pack`` and comes back through ``unpack``.

The hooks are torch's own (``torch.autograd.graph.saved_tensors_hooks``, ``save_on_cpu``, and with them ``torch.utils.checkpoint``), one
stack for both engines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.torch_private import (
    EnableTorchFunction,
    GraphExecGroup,
    get_graph_exec_group,
    set_graph_exec_group,
)
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
        with _exec_group():
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


class _SweepGroup(GraphExecGroup):
    """The sweep as torch's checkpoint knows it: under one group a segment is recomputed once, not for each tensor that is asked for."""


class _State(threading.local):
    group: _SweepGroup | None = None


_state = _State()


@contextmanager
def one_sweep() -> Iterator[None]:
    """Whatever is unpacked inside belongs to one backward pass; passes nest (a hook or a recomputation may run one of its own)."""
    outer, _state.group = _state.group, _SweepGroup()
    try:
        yield
    finally:
        _state.group = outer


@contextmanager
def _exec_group() -> Iterator[None]:
    before = get_graph_exec_group()
    if _state.group is None or not (before is None or isinstance(before, _SweepGroup)):
        yield  # outside of a sweep, or in a group that the user has set
        return
    set_graph_exec_group(_state.group)
    try:
        yield
    finally:
        set_graph_exec_group(before)
