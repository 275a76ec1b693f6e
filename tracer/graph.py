"""The recorder: the nodes that calls inside ``with Graph()`` leave behind, the graph of a result, and the rustworkx graph of either."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import ref as reference_to

import rustworkx as rx
import torch

from ops_registry.sites import Site, open_graphs
from ops_registry.torch_private import storage_key
from ops_registry.unused import census
from tracer.errors import NoHistoryError, NotNotedError
from tracer.naming import describe_node
from tracer.node import Bridge, CallNode, Leaf, Node, Output, flat, parts_of
from tracer.notes import calls
from tracer.notes.calls import Call, CallNotes
from tracer.notes.cuts import Cut, CutNotes, asked, noting
from tracer.notes.finite import FiniteNotes
from tracer.notes.values import Values


@dataclass(frozen=True)
class GraphNode:
    """What the ``digraph`` holds for one node. It holds no tensor, so that no graph ever keeps memory alive."""

    serial: int
    op: str
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    kept_bytes: int
    kept: tuple[str, ...]
    #: Where the call was made, if a graph with sites was open.
    site: Site | None


@dataclass(frozen=True)
class OpCount:
    """How often an op stands in a graph and what its nodes keep for backward."""

    op: str
    count: int
    kept_bytes: int


class Graph:
    """Records the calls made by this thread inside ``with graph:``; of several that are open the innermost records.

    Outside of any, a call notes nothing: its node hangs on its result, and ``graph_of`` finds it from there. The graph does not own its
    nodes: they belong to the tensors they led to, and go with them. What the graph shows is what is alive at that moment.

    ``sites``: note where each call was made, the user's line and the module's path, and every place where a history ended. Errors then
    name them; ``calls()`` and ``cuts()`` show them, of calls that are gone too. ``finite``: note whether the result of each call is finite;
    this is read when ``calls()`` is asked, so that no call waits for a device. None of these keeps a tensor of the user's alive.

    A graph that stays open over a training loop stays small: notes are kept of all calls that are alive, of the latest that are gone, 4096
    or twice as many as were ever alive at once (for a while up to twice as many notes), and of the latest 2048 cuts.

    ``values``: keep every argument and every result of each recorded call as long as the call is alive, for ``values_of`` and
    ``tracer.replay``. What an in-place op writes to is copied for it.
    """

    def __init__(self, *, sites: bool = False, finite: bool = False, values: bool = False) -> None:
        self._calls = CallNotes(sites=sites) if sites or finite else None
        self._cuts = CutNotes() if sites else None
        self._finite = FiniteNotes() if finite else None
        #: Whether it is noted where calls are made, and where histories end.
        self.notes_sites = sites
        #: Whether it is noted of each result whether it is finite.
        self.notes_finite = finite
        #: Whether arguments and results are kept.
        self.keeps_values = values
        self._nodes: list[weakref.ref[Node]] = []
        self._limit = calls.KEPT_CALLS
        self._outer: list[tuple[Any, CutNotes | None]] = []
        #: The level of ``torch.vmap`` around this graph: it is told too.
        self._level: Any = None

    def __enter__(self) -> Graph:
        self._outer.append((current.__dict__.get("graph"), noting.cuts))
        self._level = self._level_around()
        current.graph = self
        open_graphs.count += 1
        noting.cuts = self._cuts
        if self._cuts is not None:
            asked.add(1)
        return self

    def __exit__(self, *exc: object) -> None:
        outer, noting.cuts = self._outer.pop()
        self._level = self._level_around()
        open_graphs.count -= 1
        if self._cuts is not None:
            asked.add(-1)
        if outer is None:
            del current.graph  # what is left is the default of all threads
        else:
            current.graph = outer

    def _level_around(self) -> Any:
        outer = self._outer[-1][0] if self._outer else None
        return None if isinstance(outer, Graph) else outer

    def note(self, node: Node, result: Any = None, bound: tuple[Any, ...] | None = None) -> None:
        """Enter a node that was just recorded, by a call that gave ``result`` for the arguments ``bound``, where it is one of a rule.

        References to nodes that are gone are dropped once there may be many. The limit doubles with what is alive, so that each node is
        looked at a constant number of times on average.
        """
        if self._calls is not None:
            self._calls.note(node)
        if self._finite is not None:
            self._finite.note(node, result)
        if self.keeps_values and bound is not None and isinstance(node, CallNode):
            node.values = Values(node.plan.rule, bound)
            node.values.keep_result(result)
        if self._level is not None:
            self._level.note(node)
        if _Current.graph is not None:  # anomaly mode
            _Current.graph.note(node)
        nodes = self._nodes
        nodes.append(reference_to(node))
        if len(nodes) > self._limit:
            self._drop_what_is_gone()

    def _drop_what_is_gone(self) -> None:
        self._nodes = [reference for reference in self._nodes if reference() is not None]
        self._limit = max(calls.KEPT_CALLS, 2 * len(self._nodes))
        if self._calls is not None:
            self._calls.drop({node.serial for node in self.nodes()})
            if self._finite is not None:
                self._finite.drop(self._calls.numbers())

    def nodes(self) -> list[Node]:
        """The live nodes recorded here, in the order in which they were recorded, leaves and results not counted."""
        found = [reference() for reference in self._nodes]
        return [node for node in found if node is not None]

    def __len__(self) -> int:
        """How many recorded calls are alive."""
        return len(self.nodes())

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes())

    def calls(self) -> list[Call]:
        """Every call recorded here, oldest first, those that are gone too, up to the bound that the class states.

        Raises ``NotNotedError`` for a graph with neither ``sites`` nor ``finite``. With ``finite`` alone nothing is known of places.
        """
        if self._calls is None:
            raise _without_sites("calls")
        if self._finite is not None:
            self._finite.read()
        return self._calls.calls({node.serial for node in self.nodes()}, self._finite)

    def dropped(self) -> tuple[int, int]:
        """How many notes of calls that are gone have been dropped, for the bound that the class states, and the highest number of those.

        The number is -1 where there are none.
        """
        return (0, -1) if self._calls is None else (self._calls.dropped, self._calls.last_dropped)

    def recorded(self) -> int:
        """How many calls have been recorded here, those too of which nothing is left. Raises as ``calls`` does."""
        if self._calls is None:
            raise _without_sites("recorded")
        return len(self._calls) + self._calls.dropped

    def cuts(self) -> list[Cut]:
        """Every place where a history ended while the graph was open, oldest first; one that came again stands where it came last.

        Raises ``NotNotedError`` for a graph without ``sites``.
        """
        if self._cuts is None:
            raise _without_sites("cuts")
        return self._cuts.cuts()

    def values_of(self, node: Node) -> Mapping[str, Any]:
        """The arguments of a call, by the names that its rule has for them, and what it returned, as ``"result"``.

        They are plain tensors. Reading one that was written to in place since raises ``OverwrittenError``. Raises ``NotNotedError`` where
        none were kept: without ``values``, for a call under a rule of no op (a custom Function) or inside ``torch.vmap``, and after
        ``remove``.
        """
        call = node.parents[0] if isinstance(node, Output) and node.parents else node
        values: Values | None = call.values
        if values is None:
            raise NotNotedError(
                f"values_of() was asked of {describe_node(call)}, whose arguments and result were not kept: record it inside "
                f"tracer.Graph(values=True), and outside of torch.vmap"
            )
        return values

    def site_of(self, node: Node) -> Site | None:
        """Where the call of ``node`` was made; None for a leaf, and for a call that was recorded without ``sites``."""
        return node.parents[0].site if isinstance(node, Output) and node.parents else node.site

    def counts(self) -> dict[str, int]:
        """How often each op stands in the graph, most frequent first."""
        return dict(Counter(node.op for node in self.nodes()).most_common())

    def summary(self) -> list[OpCount]:
        """Each op with its count and the bytes its nodes keep, most frequent first.

        Memory that several nodes keep is counted once, for the node recorded first.
        """
        counts: Counter[str] = Counter()
        kept: Counter[str] = Counter()
        seen: set[int] = set()
        for node in self.nodes():
            counts[node.op] += 1
            kept[node.op] += kept_bytes(node, seen)
        return [OpCount(op, count, kept[op]) for op, count in counts.most_common()]

    def kept_bytes(self) -> int:
        """Bytes of all memory kept for backward in the graph, shared memory counted once."""
        seen: set[int] = set()
        return sum(kept_bytes(node, seen) for node in self.nodes())

    @property
    def digraph(self) -> rx.PyDiGraph[GraphNode, int]:
        """The graph as a ``rustworkx.PyDiGraph``, built from what is alive at the time of asking.

        Payloads are ``GraphNode``; an edge leads from an input to the call that used it and carries the input's position.
        """
        return build_digraph(self.nodes())

    def backward_order(self, root: torch.Tensor) -> list[Node]:
        """The nodes that ``root.backward()`` would visit, in an order that visits every node after all that use it.

        Raises ``NoHistoryError`` when ``root`` has no history.
        """
        return backward_order([_history(root, "backward_order()")])

    def has_cycle(self) -> bool:
        """Whether the graph has a cycle, which nothing but a fault can make."""
        return not rx.is_directed_acyclic_graph(self.digraph)

    def remove(self, tensor: torch.Tensor) -> None:
        """Release what the call that made ``tensor`` saved, and cut its edges: backward through it raises afterwards.

        Raises ``NoHistoryError`` when no recorded call made ``tensor``.
        """
        node = getattr(tensor, "_node", None)
        if node is None or isinstance(node, Leaf):
            raise NoHistoryError("remove() was asked for a tensor that no recorded call has made")
        _cut(node)

    def clear(self) -> None:
        """Release everything that the nodes recorded here saved, and cut their edges: backward through them raises afterwards."""
        for node in self.nodes():
            _cut(node)
        self._nodes.clear()
        for notes in (self._calls, self._cuts, self._finite):
            if notes is not None:
                notes.clear()

    def __repr__(self) -> str:
        nodes = self.nodes()
        return f"<tracer.Graph: {len(nodes)} calls, {len(self.counts())} ops, {self.kept_bytes():,} bytes kept for backward>"


def graph_of(root: torch.Tensor) -> Graph:
    """The graph of the calls that ``root`` came from, found by walking back, whether or not a ``Graph`` was open when they were made.

    It does not keep them alive: ``root`` does. Raises ``NoHistoryError`` when ``root`` has no history.
    """
    graph = Graph()
    order = backward_order([_history(root, "graph_of()")])
    graph._nodes = [weakref.ref(n) for n in reversed(order) if not isinstance(n, Leaf | Output | Bridge)]
    return graph


class _Current(threading.local):
    """The innermost open graph of this thread; outside of any, the recorder that all threads share, if there is one."""

    graph: Any = None


current = _Current()


def _count_recorded() -> dict[str, int]:
    return current.graph.counts() if isinstance(current.graph, Graph) else {}


census.count = _count_recorded


def set_default_recorder(recorder: Any) -> None:
    """``recorder.note(node)`` is called for each new node of any thread; None: no longer."""
    _Current.graph = recorder


def enter(node: Node, result: Any = None, bound: tuple[Any, ...] | None = None) -> Node:
    """Note a new node in the innermost open graph, where there is one, with what the call gave for which arguments."""
    if current.graph is not None:
        current.graph.note(node, result, bound)
    return node


def keeps_values() -> bool:
    """Whether the innermost open graph keeps arguments and results."""
    return isinstance(current.graph, Graph) and current.graph.keeps_values


def _without_sites(question: str) -> NotNotedError:
    return NotNotedError(
        f"{question}() was asked of a graph that does not note them: open it as tracer.Graph(sites=True)"
    )


def _history(root: torch.Tensor, asked: str) -> Node:
    node: Node | None = getattr(root, "_node", None)
    if node is None:
        raise NoHistoryError(f"{asked} was asked for a tensor that does not require grad: it has no history")
    return node


def _cut(node: Node) -> None:
    node.extra().removed = True
    node.saved, node.saved_versions = None, ()
    node.values = None
    node.parents = ()


def kept_bytes(node: Node, seen: set[int]) -> int:
    """Bytes of the memory that ``node`` keeps and that is not in ``seen`` (keys of storages), which it extends."""
    total = 0
    kept = node.saved_versions if node.values is None else [*node.saved_versions, *node.values.versions]
    for tensor, _ in kept:
        for part in parts_of(tensor):
            storage = storage_key(part)
            if storage not in seen:
                seen.add(storage)
                total += part.untyped_storage().nbytes()
    return total


def build_digraph(nodes: list[Node]) -> rx.PyDiGraph[GraphNode, int]:
    """The rustworkx graph of ``nodes`` and their direct inputs."""
    index: dict[Node, int] = {}
    for node in nodes:
        index.setdefault(node, len(index))
    for node in nodes:
        for parent in flat(node.parents):
            index.setdefault(parent, len(index))
    graph: rx.PyDiGraph[Any, int] = rx.PyDiGraph()
    graph.add_nodes_from([_payload(node) for node in index])
    graph.add_edges_from(
        [(index[parent], index[node], position) for node in nodes for position, parent in enumerate(flat(node.parents))]
    )
    return graph


def _payload(node: Node) -> GraphNode:
    shape = None if node.shape is None else tuple(node.shape)
    return GraphNode(node.serial, node.op, shape, node.dtype, kept_bytes(node, set()), node.saved_names, node.site)


def backward_order(roots: list[Node]) -> list[Node]:
    """Ancestors of ``roots`` and the roots, each after everything that uses it.

    A node's serial number is above those of its ancestors, so falling serial numbers are a topological order; it is torch's own
    order too, so that hooks run and memory falls in the same sequence.
    """
    seen = set(roots)
    stack = list(seen)
    while stack:
        for parent in stack.pop().parents:
            if type(parent) is tuple:
                for node in flat(parent):
                    if node not in seen:
                        seen.add(node)
                        stack.append(node)
            elif parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return sorted(seen, key=attrgetter("serial"), reverse=True)
