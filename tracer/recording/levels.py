"""Levels of ``torch.vmap``: inside one, a tensor stands for a whole batch of tensors, and what is recorded there is only valid there.

torch hides the batch dimension behind a wrapper that carries the number of its level. Numbers are used again, so what was saved in a level
that has ended is wrapped anew where a backward pass opens another (``translated``). A wrapper has no version counter of its own: inside
a level the versions of saved tensors are those of the memory beneath (``physical_versions``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ops_registry.torch_private import add_batch_dim, batch_dim_of, batch_level_of, is_batched, is_followed, unwrapped
from tracer.errors import UnsupportedError
from tracer.graph import current
from tracer.node import Node, Versions, next_serial, tensors_in


@dataclass(eq=False)
class Argument:
    """An argument of a vmapped function: ``outer`` as it is outside, ``inside`` as the function sees it, with the batch along ``dim``."""

    outer: torch.Tensor
    inside: torch.Tensor
    dim: int
    #: Whether the function has written into it and left a history.
    written: bool = False
    #: Where it is a view outside, the history of its base before that.
    before: Node | None = None


@dataclass(eq=False)
class Level:
    """One level of ``torch.vmap``: its number, the size of its batch, and the serial number at which it began."""

    number: int
    batch_size: int
    start: int
    #: The level that was open around it.
    outer: Level | None
    #: While it is open.
    arguments: list[Argument] = field(default_factory=list)
    #: The ended levels whose backward pass runs in this one: their batches are its own.
    stands_for: set[Level] = field(default_factory=set)


class _Recorder(Protocol):
    def note(self, node: Node, result: Any = None, bound: tuple[Any, ...] | None = None) -> None: ...


class LevelRecorder:
    """Sees every node that is recorded inside a level, in front of the open ``Graph``, if there is one."""

    def __init__(self, outer: _Recorder | None) -> None:
        self._outer = outer

    def note(self, node: Node, result: Any = None, bound: tuple[Any, ...] | None = None) -> None:
        """Let the versions of what ``node`` saved be those of the memory beneath the batch."""
        node.saved_versions = physical_versions(node.saved_versions)
        if self._outer is not None:
            # What is a batch inside the level is nobody's when that has ended: the memory beneath it is looked at.
            self._outer.note(node, [physical(tensor) for tensor in tensors_in(result)])


class _State(threading.local):
    def __init__(self) -> None:
        #: The open levels of this thread, innermost last.
        self.open: list[Level] = []


levels = _State()


@contextmanager
def opened(number: int, batch_size: int) -> Iterator[Level]:
    """The level ``number``, just opened by torch, for the calls made inside the block."""
    level = Level(number, batch_size, next_serial(), levels.open[-1] if levels.open else None)
    levels.open.append(level)
    outer: Any = current.__dict__.get("graph")
    current.graph = LevelRecorder(current.graph)
    try:
        yield level
    finally:
        if outer is None:
            del current.graph  # what is left is the default of all threads
        else:
            current.graph = outer
        levels.open.pop()
        level.arguments.clear()


def physical(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor beneath all levels, those of torch's own transforms too."""
    while is_batched(tensor) or is_followed(tensor):
        tensor = unwrapped(tensor)
    return tensor


def level_numbers(tensor: torch.Tensor) -> list[int]:
    """The levels in which the tensor stands for a batch, outermost first."""
    numbers = []
    while is_batched(tensor) or is_followed(tensor):
        if is_batched(tensor):
            numbers.append(batch_level_of(tensor))
        tensor = unwrapped(tensor)
    return numbers[::-1]


def _memory(tensor: torch.Tensor) -> int:
    return physical(tensor).untyped_storage()._cdata


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in one memory."""
    return a.layout is torch.strided and b.layout is torch.strided and _memory(a) == _memory(b)


def arguments_sharing(tensor: torch.Tensor) -> list[Argument]:
    """The arguments of open levels that lie in the memory of a tensor, innermost level first: there it is a view of what lies outside."""
    return [a for level in reversed(levels.open) for a in level.arguments if shares_memory(a.inside, tensor)]


def physical_versions(versions: Versions) -> Versions:
    """The saved tensors beneath all levels, each with its version now."""
    beneath: list[tuple[torch.Tensor, int]] = []
    for saved in versions:
        tensor = saved[0]
        if is_batched(tensor):
            tensor = physical(unwrapped(tensor))
            saved = tensor, tensor._version
        beneath.append(saved)
    return beneath


def translated(node: Node, saved: Any) -> Any:
    """What ``node`` saved, wrapped for the levels that are open now in place of those that it was recorded in, which have ended."""
    level = None if node.extras is None else node.extras.level
    numbers: dict[int, int] = {}
    while level is not None:
        now = next((now for now in reversed(levels.open) if now is level or level in now.stands_for), None)
        if now is None:
            raise UnsupportedError(
                "backward reached a tensor that was made inside a torch.vmap which has ended, and not by way of the results of the "
                "vmapped function. Return it from the function."
            )
        numbers[level.number] = now.number
        level = level.outer
    return saved if all(old == new for old, new in numbers.items()) else _wrapped(saved, numbers)


def _wrapped(value: Any, numbers: dict[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        if not is_batched(value):
            return value
        number = batch_level_of(value)
        return add_batch_dim(_wrapped(unwrapped(value), numbers), batch_dim_of(value), numbers.get(number, number))
    if type(value) in (tuple, list):
        return type(value)([_wrapped(item, numbers) for item in value])
    return value
