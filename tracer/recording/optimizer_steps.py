"""The steps of torch's own optimisers: nothing of them is recorded, so they run past interception.

A step writes into its parameters under ``no_grad``. Two things that interception would do are done when it has come through: views of a
parameter that may not be used any more are made stale, and an error about an overwritten tensor can name the optimiser.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ops_registry.registry import TABLE, active
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.notes.cuts import asked
from tracer.recording.levels import levels
from tracer.recording.saved import note_step
from tracer.recording.views import written_unrecorded
from tracer.tracked_tensor import Tensor

#: Of other classes, calls reach a ``__torch_function__`` that the step must not pass by.
_KNOWN = frozenset({Tensor, torch.Tensor, torch.nn.Parameter})

#: torch's own optimisers. Those that others derive from them may have more in a step; LBFGS runs the user's closure in the midst of it.
_OPTIMIZERS = frozenset(
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.LBFGS
)

#: The functions that their steps are, beneath what torch wraps around them for hooks and the grad mode.
STEPS: tuple[Callable[..., Any], ...] = tuple(
    inspect.unwrap(kind.step)
    for kind in sorted(_OPTIMIZERS, key=lambda kind: kind.__name__)
    if "step" in vars(kind) and kind is not torch.optim.Optimizer
)


def uninterrupted(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step`` of a torch optimiser, past interception where it has tracked parameters and nobody looks at its calls."""

    @functools.wraps(step)
    def run(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not _runs_unseen(self):
            return step(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with DisableTorchFunctionSubclass():
            step(self)
            for group in self.param_groups:
                for parameter in group["params"]:
                    has_views = parameter._base is not None or getattr(parameter, "_views", None)
                    if has_views and parameter.grad is not None:
                        written_unrecorded(parameter)
        note_step(self)
        return loss

    return run


def _runs_unseen(optimizer: torch.optim.Optimizer) -> bool:
    """Whether nothing is to be seen of the calls in a step: no open graph, block of rules or transform asks for them."""
    if asked.graphs or levels.open or active.table is not TABLE or type(optimizer) not in _OPTIMIZERS:
        return False
    kinds = {type(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return Tensor in kinds and kinds <= _KNOWN
