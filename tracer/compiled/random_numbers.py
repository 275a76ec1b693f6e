"""Random numbers while a step is captured: none is drawn, yet a stretch that puts the random state back draws what it drew before.

A checkpoint runs its stretch again with the random state of the first run. In a graph the second run has to use the numbers of the first,
so the generator's state counts draws here: a state that comes again stands for draws that the graph has already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.torch_private import TorchDispatchMode
from tracer.compiled.telling import users_line
from tracer.errors import CaptureError

#: Seeds from here on count draws; nobody seeds with such numbers by hand.
_FIRST = 0x6C61_7373_0000_0000


class _Stream:
    """The draws from one generator, in order."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.before = generator.get_state()
        generator.manual_seed(_FIRST)
        self.draws: list[tuple[Any, Any]] = []

    def draw(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        at = self.position(users_line())
        if at == len(self.draws):
            self.draws.append((func, func(*args, **kwargs)))
        drawn_by, result = self.draws[at]
        if drawn_by is not func:
            raise CaptureError(
                f"{func} is to draw the random numbers that {drawn_by} drew before, {users_line()}: the random state was put "
                f"back, and other calls followed. A checkpointed stretch has to do the same when it runs again."
            )
        self.generator.manual_seed(_FIRST + at + 1)
        return result

    def position(self, line: str) -> int:
        """How many draws the state stands for. Raises ``CaptureError`` where the step has seeded it."""
        at = self.generator.initial_seed() - _FIRST
        if not 0 <= at <= len(self.draws):
            raise CaptureError(
                f"the step seeds the random numbers itself, {line}: a graph draws from torch's generator as it is at each call. Seed it "
                f"before the call."
            )
        return at

    def restore(self) -> None:
        """As it was before the capture."""
        self.generator.set_state(self.before)


class RandomNumbers(TorchDispatchMode):
    """Sees every random op of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[torch.device, _Stream] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values())):
            raise CaptureError(
                f"{func} draws from a generator of the user's, {users_line()}: a graph draws from torch's own. Draw outside, "
                f"and pass the numbers as an argument."
            )
        return self._stream_of(args, kwargs).draw(func, args, kwargs)

    def _stream_of(self, args: Any, kwargs: Any) -> _Stream:
        found = next((value.device for value in args if isinstance(value, torch.Tensor)), kwargs.get("device"))
        device = torch.device("cpu" if found is None else found)
        if device not in self.streams:
            self.streams[device] = _Stream(_generator_of(device))
        return self.streams[device]


def _generator_of(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


@contextmanager
def random_numbers() -> Iterator[None]:
    """The random state at the end is that of the start."""
    mode = RandomNumbers()
    mode.streams[torch.device("cpu")] = _Stream(torch.default_generator)
    try:
        with mode:
            yield
        for stream in mode.streams.values():
            stream.position("at an unknown line")
    finally:
        for stream in mode.streams.values():
            stream.restore()


def draws(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph draws random numbers."""
    return any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in graph.graph.nodes)
