"""What a step reaches, looked at as a capture has shown that it has to be; and which state of all that a call finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch

from ops_registry.torch_private import TensorGuards
from tracer.compiled.key import hooks_of, key_of_tensor
from tracer.compiled.layouts import check_layouts
from tracer.compiled.observed import Seen
from tracer.compiled.optimizers import Optimizers
from tracer.compiled.reached import Reached

#: States are numbered through, whoever looks.
_numbers = itertools.count()


class Look:
    """One way to walk a step: with what a capture of it has met."""

    def __init__(
        self,
        step: Callable[..., Any],
        modules: Sequence[torch.nn.Module],
        seen: Seen,
        leaf_hooks: bool = True,
        optimizers: Optimizers | None = None,
    ) -> None:
        """``leaf_hooks``: hooks on leaves run in what is captured, and are walked too. ``optimizers``: may step inside."""
        self.seen = seen
        self._leaf_hooks = leaf_hooks
        self._optimizers = optimizers
        #: The number of the state that the last call found: equal where a walk finds equal things.
        self.state = -1
        self._walked = step, modules
        self._reached: Reached | None = None
        self._roots: tuple[Any, ...] = ()
        self._guards: Any = None
        # With its number what the ids in it stand for; not the walk, which holds tensors.
        self._states: dict[Any, tuple[int, list[Any]]] = {}

    def at(self, roots: tuple[Any, ...]) -> Reached:
        """What the step reaches now, through ``roots`` among its arguments too; walked anew only where something is not what it was."""
        reached = self._reached
        if (
            reached is not None
            and len(roots) == len(self._roots)
            and all(map(is_, roots, self._roots))
            and reached.unchanged()
            and self._guards.check(*reached.tensors)
        ):
            return reached
        self._roots = roots
        return self._take(Reached(*self._walked, roots, self.seen, self._leaf_hooks, self._optimizers))

    def extend(self, reached: Reached) -> Reached:
        """What is to be kept of a walk for which a graph was captured: with all that the capture has met."""
        if reached.extended is None:
            return reached
        self.seen = reached.extended.seen
        return self._take(reached.extended)

    def forget(self) -> None:
        """Let go of all states but the last."""
        self._states.clear()
        self._reached = None

    def _take(self, reached: Reached) -> Reached:
        check_layouts(reached.tensors, reached.names)  # torch's guards end the process there
        self._reached = reached
        self._guards = TensorGuards(*reached.tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        hooked = self._leaf_hooks
        tensors = [
            (*key_of_tensor(t), t.requires_grad, hooked and t.requires_grad and hooks_of(t)) for t in reached.tensors
        ]
        key = tuple(reached.facts), tuple(tensors)
        if key not in self._states:
            self._states[key] = next(_numbers), reached.kept
        self.state, _ = self._states[key]
        return reached
