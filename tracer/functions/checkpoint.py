"""Memory traded for time: a stretch of the forward pass keeps its inputs alone, and runs again when backward comes to it.

torch's own checkpoint does it, in its form without a nested backward pass, by the saved-tensor hooks that this engine honours:
nesting, early stop of the recomputation, random state, autocast and errors inside are its.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import CheckpointFunction

from ops_registry.scopes import as_now
from ops_registry.torch_private import CheckpointFrame
from tracer.errors import UnsupportedError
from tracer.functions.context import SavedTensor
from tracer.recording.levels import levels
from tracer.tracked_tensor import Tensor

__all__ = ["checkpoint", "checkpoint_sequential", "save_on_cpu", "saved_tensors_hooks"]

#: ``checkpoint(function, *args, preserve_rng_state=True, **kwargs)``: ``torch.utils.checkpoint.checkpoint(use_reentrant=False)``.
checkpoint: Callable[..., Any] = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)

#: ``checkpoint_sequential(functions, segments, input, preserve_rng_state=True)``: a sequence of modules in ``segments`` such stretches.
checkpoint_sequential: Callable[..., Any] = functools.partial(
    torch.utils.checkpoint.checkpoint_sequential, use_reentrant=False
)


class _Stretch:
    """How errors name it."""

    title = "a checkpointed stretch"
    #: No level of ``torch.vmap`` was open around it.
    extras = None


_WITH_VMAP = (
    "torch.utils.checkpoint together with torch.vmap, one inside the other: the stretch would run again in a backward pass that carries "
    "another batch. Leave the checkpoint out of the vmapped part."
)


#: torch's own, which ``save_inputs`` and ``get_inputs`` stand in front of. There are none before torch 2.13: a custom Function saves.
_save_natively: Any = getattr(CheckpointFrame, "save_inputs", None)
_get_natively: Any = getattr(CheckpointFrame, "get_inputs", None)


#: torch's own, which ``make_frame`` and ``run_reentrant`` stand in front of.
_make_natively: Any = CheckpointFrame.__init__
_run_natively: Any = CheckpointFunction.forward


def make_frame(frame: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """``_CheckpointFrame.__init__``: the stretch runs again under the rules that held in the forward pass, at its place."""
    _make_natively(frame, as_now(recompute_fn), *args, **kwargs)


def run_reentrant(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
    """``CheckpointFunction.forward`` (``use_reentrant=True``), the same."""
    return _run_natively(ctx, as_now(run_function), *args)


def save_inputs(frame: Any, *args: Any) -> None:
    """``_CheckpointFrame.save_inputs``, where tracked arguments keep their history; inside ``torch.vmap`` they are refused."""
    if levels.open and any(type(arg) is Tensor for arg in args):
        raise UnsupportedError(_WITH_VMAP)
    frame.tracked_inputs = {
        i: SavedTensor(arg, f"its argument {i}", node=arg._node, position=None, unrecorded=False, keep=False)
        for i, arg in enumerate(args)
        if type(arg) is Tensor
    }
    _save_natively(frame, *[None if type(arg) is Tensor else arg for arg in args])


def get_inputs(frame: Any) -> list[Any]:
    """``_CheckpointFrame.get_inputs``, tracked arguments with their history."""
    if any(level.stands_for for level in levels.open):
        raise UnsupportedError(_WITH_VMAP)
    return [
        frame.tracked_inputs[i].get(_Stretch) if i in frame.tracked_inputs else arg
        for i, arg in enumerate(_get_natively(frame))
    ]
