"""What a compiled step does around its graph: before it runs, and with gradients that somebody takes on their way to ``.grad``.

Data parallel training sends gradients to other processes, which no graph does. Who takes part in that notes it here while a step is
captured; each run of the graph does it with the values of that run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass

_GRAD: Any = torch.Tensor.grad


@dataclass
class Handing:
    """Gradients of one backward pass that somebody takes once the graph has run."""

    #: Gets each gradient in a list of one, or an empty list where none came, and fills ``.grad`` of its leaves.
    give: Callable[[Sequence[list[Any]]], None]
    gradients: list[torch.Tensor | None]
    #: What ``.grad`` of each of its leaves is before that.
    before: list[tuple[torch.Tensor, torch.Tensor | None]]


@dataclass
class Around:
    """What is noted in one capture."""

    #: To be called before each run of the graph, in this order.
    prepare: list[Callable[[], None]] = field(default_factory=list)
    #: What is handed over after it, in the order of the backward passes.
    handings: list[Handing] = field(default_factory=list)
    #: Leaves, by id, whose ``.grad`` the graph does not know any more.
    handed: set[int] = field(default_factory=set)
    #: Tensors, by id, that the step may not write into, with the error.
    kept: dict[int, Callable[[], Exception]] = field(default_factory=dict)
    #: Which of the optimisers that it reaches step inside.
    stepped: list[int] = field(default_factory=list)
    #: What somebody who takes part keeps of this capture.
    notes: dict[Any, Any] = field(default_factory=dict)

    def hand_over(
        self,
        give: Callable[[Sequence[list[Any]]], None],
        leaves: Sequence[torch.Tensor],
        gradients: list[torch.Tensor | None],
    ) -> None:
        """Give ``gradients`` to ``give`` after each run, which fills ``.grad`` of ``leaves``, as it is now, with what it makes of them."""
        with DisableTorchFunctionSubclass():
            before = [(leaf, _GRAD.__get__(leaf)) for leaf in leaves]
            for leaf in leaves:
                _GRAD.__set__(leaf, None)
        self.handings.append(Handing(give, gradients, before))
        self.handed.update(map(id, leaves))


class _State(threading.local):
    innermost: Around | None = None


_state = _State()


def capture_in_progress() -> Around | None:
    """What is noted of the step that this thread captures; None where it captures none."""
    return _state.innermost


@contextmanager
def noting(around: Around) -> Iterator[None]:
    """Inside the block a step is captured."""
    outer, _state.innermost = _state.innermost, around
    try:
        yield
    finally:
        _state.innermost = outer
        around.notes.clear()
