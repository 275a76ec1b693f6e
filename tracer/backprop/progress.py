"""The sweep in progress on this thread: what hooks and callbacks ask of the backward pass around them.

torch's own Python code asks by the names of these functions (``register_multi_grad_hook``, flop counters, module trackers);
``tracer.install`` puts them there. Where torch's own engine runs a pass inside ours, or ours has none, torch answers.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ops_registry.torch_private import (
    native_autograd_node,
    native_checkpoint_is_valid,
    native_graph_task_id,
    native_will_execute,
)
from tracer.backprop.accumulate import Entry, grad_is_left_alone
from tracer.errors import NotInBackwardError
from tracer.node import Node, tensors_in
from tracer.recording.grad_fn import as_grad_fn
from tracer.recording.parents import any_node

#: Numbers of our sweeps, far from those that torch's engine counts its own passes with.
next_task = itertools.count(1 << 40).__next__


class Taker(Protocol):
    """Who takes gradients of leaves on their way to ``.grad``, and fills that at the end of the pass."""

    def take(self, sweep: Progress, tensor: torch.Tensor, buffer: list[Any]) -> bool:
        """Take the gradient of ``tensor`` out of ``buffer``, unless it is to go the usual way: then False.

        ``buffer`` holds None where no gradient has come, and nothing where hooks on ``.grad`` had it filled in already.
        """

    def settle(self, outermost: bool) -> bool:
        """Fill ``.grad`` of all that was taken. False where more is to come, in a pass that surrounds this one."""

    def abandon(self) -> None:
        """The pass has failed."""


class Progress(Protocol):
    """What is asked of a sweep."""

    task: int
    #: torch's own pass that the sweep runs inside of, -1 where there is none.
    native_task: int
    #: The node that is visited.
    node: Node | None
    #: Where gradients are asked for; None where all leaves are to be filled.
    targets: set[Node] | None
    #: What is to be called when the sweep has come through and every ``.grad`` is filled.
    callbacks: list[Callable[[], Any]]
    #: Whether what nodes saved is to stay there.
    keep_graph: bool
    #: The nodes that a gradient of zero has come to.
    zero: set[Node]
    #: The nodes that it visits, in their order.
    order: list[Node]
    #: Whether the pass is itself recorded.
    create_graph: bool
    #: Leaves that are filled when it has come through.
    leaves: list[Entry]
    #: Who has taken gradients from it.
    takers: list[Taker]

    def fill(self, entries: list[Entry]) -> None:
        """Add each gradient to the ``.grad`` of its tensor."""

    def will_visit(self, node: Node) -> bool:
        """Whether ``node`` is among those that the sweep visits."""


class _State(threading.local):
    def __init__(self) -> None:
        self.sweeps: list[Progress] = []


_state = _State()


def begin(sweep: Progress) -> None:
    """The sweep is the innermost one from now on."""
    sweep.native_task = native_graph_task_id()
    _state.sweeps.append(sweep)


def end() -> None:
    """The innermost sweep is over."""
    _state.sweeps.pop()


def innermost() -> Progress | None:
    """The sweep that surrounds the code that asks; None where there is none, or a pass of torch's own is nearer."""
    sweeps = _state.sweeps
    return sweeps[-1] if sweeps and sweeps[-1].native_task == native_graph_task_id() else None


def in_progress() -> Sequence[Progress]:
    """The sweeps of this thread, the innermost last: it runs in a hook, a checkpoint or a Function of the one before."""
    return _state.sweeps


def at_end_of_backward(callback: Callable[[], Any]) -> None:
    """Call ``callback()`` once the backward pass in progress on this thread has come through and every ``.grad`` is filled; for hooks.

    Callbacks run in the order in which they came; one may ask for another. None runs where the pass raises. A backward pass inside another
    is one of its own. Raises ``NotInBackwardError`` outside of a backward pass.
    """
    sweep = innermost()
    if sweep is None:
        raise NotInBackwardError("at_end_of_backward() was called outside of a backward pass: call it in a hook")
    sweep.callbacks.append(callback)


def current_graph_task_id() -> int:
    """``torch._C._current_graph_task_id``: the number of the backward pass in progress, -1 where there is none."""
    sweep = innermost()
    return native_graph_task_id() if sweep is None else sweep.task


def current_autograd_node() -> Any:
    """``torch._C._current_autograd_node``: the node that is visited, None outside of a backward pass."""
    sweep = innermost()
    if sweep is None:
        return native_autograd_node()
    return None if sweep.node is None else as_grad_fn(sweep.node)


def is_checkpoint_valid() -> bool:
    """``torch.autograd._is_checkpoint_valid``: whether a backward pass may run inside those in progress, which fills every leaf it meets.

    Not where any of them is for some tensors only (``grad``, ``inputs=``), unless what fills ``.grad`` is taken out again.
    """
    asked_for_some = any(sweep.targets is not None for sweep in _state.sweeps)
    return native_checkpoint_is_valid() and (grad_is_left_alone() or not asked_for_some)


def will_engine_execute_node(node: Any) -> bool:
    """``torch._C._will_engine_execute_node``: whether the backward pass in progress comes to the node."""
    sweep = innermost()
    if sweep is None and not isinstance(node, Node):
        return native_will_execute(node)
    if sweep is None:
        raise NotInBackwardError("_will_engine_execute_node() was called outside of a backward pass: call it in a hook")
    if isinstance(node, Node):
        return sweep.will_visit(node)
    variable = getattr(node, "variable", None)  # torch's own node of a native leaf, which our sweep fills
    ours = None if variable is None else any_node(variable)
    return ours is not None and sweep.will_visit(ours)


def in_flight(sweep: Any) -> list[torch.Tensor]:
    """All gradients that a sweep holds."""
    waiting = [g for _, buffer in sweep.leaves for g in buffer]
    handed = [g for _, g in (*sweep.retained, *sweep.bridged)]
    return [*tensors_in(list(sweep.grads.values())), *waiting, *handed, *sweep.found.values()]
