"""The note of every call that a graph with ``sites`` or ``finite`` has seen, of those that are gone too.

A note holds numbers and names: no tensor, no node, no module. So it keeps nothing alive, and a bounded number of them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ops_registry.sites import NO_MODULE, Site, find_place
from tracer.node import CallNode, Leaf, Node, Output
from tracer.notes.finite import FiniteNotes

#: Calls that are gone are kept up to this many, or up to twice as many as were alive at once.
KEPT_CALLS = 4096


#: Nodes that stand for themselves: of no class that has an ``outer``, and no part of another.
_USUAL = frozenset((CallNode, Leaf))


@dataclass(frozen=True)
class Call:
    """One recorded call: what ran, where, and on what."""

    #: Grows from call to call; that of the call's node.
    serial: int
    op: str
    site: Site
    #: Serial numbers of the calls, and of the leaves, that its inputs came from. A leaf that requires grad keeps its number.
    parents: tuple[int, ...]
    #: Whether some tensor still holds the call: then backward can come to it.
    alive: bool
    #: Whether what it returned was finite; None without ``finite``, and where it cannot be told.
    finite: bool | None = None
    #: Its smallest and largest element, both nan where it had one; None where ``finite`` is, and for integers.
    extremes: tuple[float, float] | None = None


class CallNotes:
    """The notes of one graph, by serial number, oldest first."""

    def __init__(self, *, sites: bool) -> None:
        self._sites = sites
        #: What a site is made of, and the numbers of the parents: ``Node.place``.
        self._notes: dict[int, tuple[Any, ...]] = {}
        self._most_alive = 0
        #: How many notes have been dropped, and the highest serial number among them.
        self.dropped = 0
        self.last_dropped = -1

    def note(self, node: Node) -> None:
        """Note the call of ``node``."""
        # Tuples are added up, for with stars there is a list between.
        if self._sites:
            # From above the frame that recorded the call: that one, this one and that of ``Graph.note`` are nobody's site.
            self._notes[node.serial] = node.place = (node.op,) + find_place(4) + serials(node.parents)  # noqa: RUF005
        else:
            self._notes[node.serial] = (node.op, NO_MODULE, None, 0) + serials(node.parents)  # noqa: RUF005

    def drop(self, alive: set[int]) -> None:
        """Drop the oldest notes of calls that are gone: the latest are kept, twice as many as the most that were ever ``alive``."""
        self._most_alive = max(self._most_alive, len(alive))
        room = max(KEPT_CALLS, 2 * self._most_alive)
        surplus = len(self._notes) - len(alive) - room
        if surplus > 0:
            oldest = [serial for serial in islice(self._notes, surplus + len(alive)) if serial not in alive][:surplus]
            for serial in oldest:
                del self._notes[serial]
            self.dropped += len(oldest)
            self.last_dropped = oldest[-1]

    def __len__(self) -> int:
        """How many notes there are."""
        return len(self._notes)

    def numbers(self) -> Set[int]:
        """The serial numbers of the calls that are noted."""
        return self._notes.keys()

    def calls(self, alive: set[int], finite: FiniteNotes | None) -> list[Call]:
        """Every call that is noted, oldest first."""
        if finite is None:
            return [Call(s, note[0], Site(*note[:4]), note[4:], s in alive) for s, note in self._notes.items()]
        return [
            Call(s, note[0], Site(*note[:4]), note[4:], s in alive, finite.of(s), finite.extremes_of(s))
            for s, note in self._notes.items()
        ]

    def clear(self) -> None:
        """Forget all calls."""
        self._notes.clear()
        self.dropped, self.last_dropped = 0, -1


def serials(parents: Sequence[Any]) -> tuple[int, ...]:
    """The numbers of the calls and leaves that ``parents`` stand for, in their order."""
    if len(parents) == 1 and type(parents[0]) in _USUAL:
        return (parents[0].serial,)
    found: tuple[int, ...] = ()
    for parent in parents:
        if type(parent) in _USUAL:  # nearly all
            found += (parent.serial,)
        elif isinstance(parent, tuple):
            found += serials(parent)
        elif isinstance(parent, Output):
            found += serials(parent.parents)  # none where the call has been removed
        elif parent is not None:
            if parent.outer is None:
                found += (parent.serial,)
            else:
                found += serials((parent.outer,))
    return found
