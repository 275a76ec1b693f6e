"""What a step leaves in Python's objects: a cache that it fills at its first call, a setting that it makes up then.

A graph computes, and no more. But where a step that finds what it has written writes nothing else, its first call can leave that behind,
and every later one is a graph that was captured with it there. A second capture, from the state that the first has left, shows whether
anything else is written. A counter is, a list that grows, the last batch: these are refused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, swap_values
from tracer.compiled.followed import SIMPLE
from tracer.compiled.guards import Contents
from tracer.compiled.reached import Reached
from tracer.compiled.telling import differences
from tracer.errors import CaptureError
from tracer.tracked_tensor import Tensor


class PythonWrites:
    """The writes of one step from one state, as its capture left them."""

    def __init__(self, told: str, reached: Reached, after: Contents, made: list[torch.Tensor]) -> None:
        #: What is written, in words.
        self.told = told
        #: The tensors among it that the step has made: without values until the graph has run.
        self.made = made
        #: The shape of one of these that shares its memory with another one that is kept, given or returned.
        self.shares: tuple[int, ...] | None = None
        self._guards = reached.guards
        self._before = reached.guards.at_walk
        self._after = after
        self._plain = _is_plain(after.new_since(self._before))

    @property
    def applies(self) -> bool:
        """Whether a call that finds equal state finds the very objects that were written to, so that the same can be written there."""
        return self._plain and _is_plain(self._guards.contents().new_since(self._before))

    def do(self) -> None:
        """Write it."""
        self._after.put_new(self._before)

    def undo(self) -> None:
        """Put everything back."""
        self._before.put()

    def check_next(self, writes: PythonWrites | None) -> None:
        """Raise ``CaptureError`` where the next capture writes as well, or where a graph cannot leave what this one does."""
        if writes is not None:
            raise self.refusal()
        if self.shares is not None:
            raise CaptureError(
                f"the step keeps a tensor of shape {self.shares} that shares its memory with another one that is kept, given or "
                f"returned: in a graph they are two. Keep a copy (x.clone()), or fill the cache before the step is compiled."
            )

    def refusal(self) -> CaptureError:
        """What a step is told that writes and may not."""
        return refusal(self.told)


def refusal(told: str) -> CaptureError:
    """``told`` says what the step writes."""
    return CaptureError(
        f"the step changes {told}, at each call anew, or to what no graph can leave there (an argument, a value with a history). Do "
        f"that outside of the step, with what it returns, or in a buffer that is written in place. (A cache that is filled once can be "
        f"filled before the step is compiled.)"
    )


def find_writes(reached: Reached, arguments: Sequence[torch.Tensor], symbolic: bool) -> PythonWrites | None:
    """What a step has left in what it reaches, None where it left nothing; called when its tensors have their values again.

    ``arguments``: the tensors among them. Raises ``CaptureError`` for what no call could leave there: arguments, values with a history,
    and with ``symbolic`` sizes all but plain values and tensors of fixed sizes.
    """
    if reached.unchanged():
        return None
    again = reached.again()
    told = _told(reached, again)
    after = reached.guards.contents()
    new = after.new_since(reached.guards.at_walk)
    if reached.facts == again.facts and _is_plain(new):
        return None  # equal values again
    given = reached.given | set(map(id, arguments))
    kept = [value for value in again.tensors if id(value) not in reached.places]
    owners = after.owners_changed_since(reached.guards.at_walk)
    if any(id(value) in given for value in [*new, *kept, *owners]):
        raise refusal(told)
    for tensor in again.made:
        if type(tensor) not in (torch.Tensor, Tensor) or tensor.requires_grad:
            raise refusal(told)
    made = set(map(id, again.made))
    plain = _is_plain(value for value in new if id(value) not in made)
    if symbolic and not (plain and all(_has_fixed_sizes(tensor) for tensor in again.made)):
        raise refusal(told)
    return PythonWrites(told, reached, after, again.made)


def give_memory(made: Sequence[torch.Tensor]) -> None:
    """Put real tensors in the place of those that a step has made, wherever they are held."""
    with DisableTorchFunctionSubclass():
        for tensor in made:
            real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            swap_values(tensor, real)


def _is_plain(values: Iterable[Any]) -> bool:
    """Whether all there is of these values is in the facts of a walk; a symbolic size is more."""
    return all(
        (type(value) in SIMPLE and type(value) is not torch.Size)
        or isinstance(value, enum.Enum)
        or (isinstance(value, tuple) and _is_plain(value))
        for value in values
    )


def _has_fixed_sizes(tensor: torch.Tensor) -> bool:
    return all(type(size) is int for size in (*tensor.shape, *tensor.stride()))


def _told(reached: Reached, again: Reached) -> str:
    found = differences(reached.facts, again.facts).told
    if not found:
        pairs = zip(reached.names, reached.tensors, again.tensors, strict=False)
        found = [f"{name} (another tensor)" for name, tensor, other in pairs if tensor is not other]
    return found[0] if found else "an object that it reaches, for another one"
