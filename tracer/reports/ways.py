"""``path``: a shortest way from one tensor to another through the graph, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import rustworkx as rx
import torch
from rustworkx.visit import BFSVisitor, StopSearch

from ops_registry.sites import Site
from tracer.errors import NotNotedError
from tracer.graph import Graph, backward_order
from tracer.node import Leaf, Node, Output, flat
from tracer.recording.parents import any_node
from tracer.reports.report import Report, Row, calls, place
from tracer.reports.steps import input_names
from tracer.reports.subjects import check_graph, check_tensor

#: Beyond this ways are not counted: their number grows as a power of the depth.
_MANY = 10**12


@dataclass(frozen=True)
class Hop(Row):
    """One call on the way."""

    op: str
    #: As which of its arguments it takes what came before.
    input: str
    site: Site | None
    #: The number of the call.
    serial: int = field(repr=False)


def path(x: torch.Tensor, y: torch.Tensor, graph: Graph | None = None) -> Report[Hop]:
    """A shortest way of recorded calls from ``x`` to ``y``, in the order in which they ran, and in the verdict how many ways there are.

    Two ways differ in a call that they go through. Gradients of ``y`` come to ``x`` along all of them, the other way round. Where there is
    none, the verdict says why; with the ``graph`` that was open, if it has ``sites``, it names the places where the history of ``x`` was
    cut. ``x`` is the tensor as it is now: what was computed from it before an in-place write came from another.
    """
    check_tensor("path", "x", x)
    check_tensor("path", "y", y)
    if graph is not None:
        check_graph("path", graph)
    start, end = any_node(x), any_node(y)
    if start is None or end is None:
        return _no_history(start, end, graph)
    if start is end:
        return Report("x and y are the same value: no call lies between")

    def home(node: Node) -> Node:
        return node if node is start else _call(node)  # of several results of one call x is one

    order = [home(node) for node in reversed(backward_order([end]))]
    index = {node: i for i, node in enumerate(dict.fromkeys(order))}
    source, target = start, home(end)
    if source not in index:
        return _no_way(source, end, graph)
    nodes = list(index)
    edges = {(index[home(parent)], i) for i, node in enumerate(nodes) for parent in flat(node.parents)}
    digraph: rx.PyDiGraph[Node, None] = rx.PyDiGraph()
    digraph.add_nodes_from(nodes)
    digraph.add_edges_from_no_data(sorted(edges))
    found = _shortest(digraph, index[source], index[target])
    count = _count(digraph, index[source], index[target])
    ways = "1 way" if count == 1 else f"{count:,} ways" if count < _MANY else f"more than {_MANY:,} ways"
    rows = [_hop(nodes[before], nodes[i]) for before, i in pairwise(found)]
    of = "it has" if count == 1 else "a shortest has"
    return Report(f"{ways} from {_told(source)} to {_told(target)}; {of} {calls(len(rows))}", rows)


def _call(node: Node) -> Node:
    """The call that a node is a result of."""
    return node.parents[0] if isinstance(node, Output) and node.parents else node


class _Tree(BFSVisitor):
    """Notes from where each node was reached first."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.before: dict[int, int] = {}

    def tree_edge(self, edge: Any) -> None:
        """Called for the edge over which a node is reached first."""
        self.before[edge[1]] = edge[0]
        if edge[1] == self.target:
            raise StopSearch


def _shortest(digraph: rx.PyDiGraph[Node, None], source: int, target: int) -> list[int]:
    tree = _Tree(target)
    rx.bfs_search(digraph, [source], tree)
    found = [target]
    while found[-1] != source:
        found.append(tree.before[found[-1]])
    return found[::-1]


def _count(digraph: rx.PyDiGraph[Node, None], source: int, target: int) -> int:
    """How many ways lead from one to the other, up to the bound. The indices of the nodes stand in the order of the calls."""
    ways = {source: 1}
    for i in range(source + 1, target + 1):
        total = sum(ways.get(before, 0) for before in digraph.predecessor_indices(i))
        if total:
            ways[i] = min(total, _MANY)
    return ways[target]


def _hop(before: Node, node: Node) -> Hop:
    names = input_names(node)
    taken = [
        name.lstrip("_") + (f"[{i}]" if type(parent) is tuple else "")
        for name, parent in zip(names, node.parents, strict=False)
        for i, one in enumerate(parent if type(parent) is tuple else (parent,))
        if one is not None and before in (one, _call(one))
    ]
    return Hop(node.op, ", ".join(taken), node.site, node.serial)


def _told(node: Node) -> str:
    if isinstance(node, Leaf):
        return f"the leaf of shape {tuple(node.shape or ())}"
    return f"the result of {node.op}" + (f" at {place(node.site)}" if node.site is not None else "")


# ---------------------------------------------------------------------- where there is none
def _no_history(start: Node | None, end: Node | None, graph: Graph | None) -> Report[Hop]:
    if start is None:
        return Report(
            "no way: x does not require grad, and no call that takes it alone is recorded",
            (),
            ["Call requires_grad_() on it before it is used."],
        )
    report = _no_way(start, end, graph)
    report.verdict = f"no way: y has no history{report.verdict.removeprefix('no way')}"
    return report


def _no_way(start: Node, end: Node | None, graph: Graph | None) -> Report[Hop]:
    if end is not None and end in set(backward_order([start])):
        return Report("no way: x came from y, not y from x", (), ["Ask the other way round."])
    try:
        cuts = [] if graph is None else graph.cuts()
    except NotNotedError:
        cuts = []
    below = set() if graph is None or not cuts else _below(_call(start).serial, graph)
    found = [cut for cut in cuts if below.intersection(cut.parents)]
    if found:
        told = ", ".join(f"{cut.what} ({cut.site.op}) at {place(cut.site)}" for cut in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return Report(f"no way: the history of x was cut by {told}{more}", (), ["Compute on without the cut."])
    if end is not None and not isinstance(start, Leaf) and start.serial > end.serial:
        return Report("no way: x is younger than y, or was written into after y was computed")
    advice = (
        []
        if graph is not None
        else ["tracer.Graph(sites=True) notes where histories are cut: path(x, y, graph) names the place."]
    )
    return Report("no way: no recorded call on x leads to y", (), advice)


def _below(serial: int, graph: Graph) -> set[int]:
    """The numbers of all calls that came from a call or leaf, those that are gone too."""
    below = {serial}
    for call in graph.calls():
        if not below.isdisjoint(call.parents):
            below.add(call.serial)
    return below
