"""What a graph holds at one moment, without its tensors: what the reports on its structure are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch

from ops_registry.declare import zero_gradient
from ops_registry.sites import Site
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import NotNotedError
from tracer.graph import Graph, kept_bytes
from tracer.node import Bridge, CallNode, Leaf, Node, Output, flat

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call."""

    op: str
    #: Where it was made, if the graph notes sites.
    site: Site | None
    #: Shape of the result; None for a call with several, and for one that is gone.
    shape: tuple[int, ...] | None = None
    #: Bytes that it keeps for backward and that no call before it keeps.
    kept_bytes: int = 0
    #: Its inputs' positions in ``Recorded.calls``, and in ``Recorded.leaves``.
    parents: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    #: Its rule gives a gradient of zero, whatever comes.
    zero: bool = False

    @property
    def module(self) -> str:
        """The path of the module that was running; ``""`` outside of any, or where that is not noted."""
        return "" if self.site is None else self.site.module


@dataclass(frozen=True, slots=True)
class RecordedLeaf:
    """Where gradients end: a tensor of the user's that requires grad, or one with a history in torch's own autograd."""

    shape: tuple[int, ...]
    #: Whether it is a parameter of some module; None where the tensor is gone.
    parameter: bool | None
    #: Whether its ``.grad`` is there, and zero throughout.
    zero_grad: bool

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A place where histories ended."""

    what: str
    site: Site
    #: Positions in ``Recorded.calls`` of those whose history ended.
    calls: tuple[int, ...]
    #: The ops of those that are gone.
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """All of it, oldest first: the calls that are alive, or where none is, the notes of those that are gone."""

    calls: list[RecordedCall]
    leaves: list[RecordedLeaf]
    cuts: list[RecordedCut]
    #: Whether ``calls`` are those that backward can come to.
    alive: bool
    #: Whether a backward pass has let go of what some of them kept.
    released: bool
    #: How many calls are noted that are gone.
    gone: int
    #: Whether it is noted where calls are made.
    sites: bool


def read_graph(graph: Graph) -> Recorded:
    """What ``graph`` holds now. The result holds no tensor."""
    nodes = graph.nodes()
    notes = _noted(graph.calls)
    cuts = _noted(graph.cuts)
    serials = [node.serial for node in nodes] or [note.serial for note in notes or ()]
    position = {serial: i for i, serial in enumerate(serials)}
    gone = {note.serial: note.op for note in notes or () if note.serial not in position}
    leaves: dict[Node, int] = {}
    if nodes:
        seen: set[int] = set()
        calls = [_read_call(graph, node, position, leaves, seen) for node in nodes]
    else:
        calls = [RecordedCall(note.op, note.site, parents=_known(note.parents, position)) for note in notes or ()]
    with torch.no_grad(), DisableTorchFunctionSubclass():
        read_leaves = [_read_leaf(leaf) for leaf in leaves]
    return Recorded(
        calls,
        read_leaves,
        [
            RecordedCut(
                cut.what,
                cut.site,
                _known(cut.parents, position),
                tuple(dict.fromkeys(gone[serial] for serial in cut.parents if serial in gone)),
            )
            for cut in cuts or ()
        ],
        alive=bool(nodes),
        released=any(node.saved is None for node in nodes),
        gone=sum(not note.alive for note in notes or ()),
        # The calls of a result may have been noted by another graph than the one that was made of them.
        sites=cuts is not None or any(graph.site_of(node) is not None for node in nodes),
    )


def _noted(ask: Callable[[], list[T]]) -> list[T] | None:
    """What a graph answers; None where it notes nothing of the kind."""
    try:
        return ask()
    except NotNotedError:
        return None


def _read_call(
    graph: Graph, node: Node, position: dict[int, int], leaves: dict[Node, int], seen: set[int]
) -> RecordedCall:
    made_by = [p.parents[0] if isinstance(p, Output) and p.parents else p for p in flat(node.parents)]
    ends = [p for p in made_by if isinstance(p, Leaf | Bridge)]
    return RecordedCall(
        node.op,
        graph.site_of(node),
        None if node.shape is None else tuple(node.shape),
        kept_bytes(node, seen),
        _known([p.serial for p in made_by], position),
        tuple([leaves.setdefault(leaf, len(leaves)) for leaf in ends]),
        is_zero(node),
    )


def _known(serials: Iterable[int], position: dict[int, int]) -> tuple[int, ...]:
    """Positions of the calls that are in the graph: an input may come from one made before it was open."""
    return tuple([position[serial] for serial in serials if serial in position])


def is_zero(node: Node) -> bool:
    """Whether all gradients of a call are declared to be zero."""
    if not isinstance(node, CallNode) or not node.plan.steps:
        return False
    return all(step.formula.function.__name__ == zero_gradient.__name__ for step in node.plan.steps)


def _read_leaf(leaf: Node) -> RecordedLeaf:
    assert leaf.shape is not None
    tensor = leaf.variable if isinstance(leaf, Leaf) else None
    if tensor is None:
        return RecordedLeaf(tuple(leaf.shape), parameter=None if isinstance(leaf, Leaf) else False, zero_grad=False)
    grad = tensor.grad
    zero = grad is not None and grad.layout is torch.strided and not bool(grad.any())
    return RecordedLeaf(tuple(leaf.shape), isinstance(tensor, torch.nn.Parameter), zero)
