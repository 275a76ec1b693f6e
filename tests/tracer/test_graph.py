"""``tracer.Graph``: what it records, how it is looked at, what it releases."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import rustworkx as rx
import torch
from support.custom import mystery
from support.leaves import leaf32

import tracer
from tracer.graph import backward_order, current


def test_a_graph_records_the_calls_made_inside() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph() as graph:
        y = (x * x).tanh() + x
    z = y * 2
    assert graph.counts() == {"mul": 1, "tanh": 1, "add": 1}
    assert len(graph) == 3
    del z


def test_calls_without_a_gradient_are_not_recorded() -> None:
    with tracer.Graph() as graph:
        y = tracer.tensor([1.0]) * 2
        with torch.no_grad():
            z = leaf32(1.0) * 2
    assert len(graph) == 0 and not y.requires_grad and not z.requires_grad


def test_graphs_nest_and_the_innermost_records() -> None:
    x = leaf32(1.0)
    with tracer.Graph() as outer:
        a = x * 2
        with tracer.Graph() as inner:
            b = x.tanh()
        c = x + 1
    assert outer.counts() == {"mul": 1, "add": 1} and inner.counts() == {"tanh": 1}
    del a, b, c


def test_a_graph_can_be_entered_again() -> None:
    x, graph = leaf32(1.0), tracer.Graph()
    with graph:
        a = x * 2
    with graph:
        b = x * 3
    assert graph.counts() == {"mul": 2}
    del a, b


def test_digraph_is_a_rustworkx_graph_with_an_edge_for_each_use() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph() as graph:
        y = x * x
    digraph = graph.digraph
    assert isinstance(digraph, rx.PyDiGraph)
    assert [n.op for n in digraph.nodes()] == ["mul", "leaf"]
    assert sorted(digraph.weighted_edge_list()) == [(1, 0, 0), (1, 0, 1)]
    (mul,) = (n for n in digraph.nodes() if n.op == "mul")
    assert mul.shape == (2,) and mul.dtype == torch.float32 and mul.kept_bytes == 8
    del y


def test_serial_order_is_a_topological_order_of_the_digraph() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph() as graph:
        a, b = (x * 2).unbind()
        y = torch.stack([a.tanh(), b, a * b]).sum() + x.sum()
    order = graph.backward_order(y)
    place = {node.serial: i for i, node in enumerate(order)}
    digraph = graph.digraph
    assert digraph.num_edges() == 12
    for source, target in digraph.edge_list():
        assert place[digraph[source].serial] > place[digraph[target].serial]


def test_backward_order_starts_at_the_root_and_visits_each_node_once() -> None:
    x = leaf32(1.0)
    with tracer.Graph() as graph:
        y = x * 2
        z = y + y
    order = graph.backward_order(z)
    assert [n.op for n in order] == ["add", "mul", "leaf"]


def test_backward_order_of_a_tensor_without_history_raises() -> None:
    with pytest.raises(tracer.NoHistoryError):
        tracer.Graph().backward_order(torch.ones(1))


def test_a_recorded_graph_has_no_cycle() -> None:
    x = leaf32(1.0)
    with tracer.Graph() as graph:
        y = x.tanh() * x
    assert not graph.has_cycle()
    del y


def test_summary_counts_shared_memory_once() -> None:
    x, w = leaf32(1.0, 2.0), leaf32(3.0, 4.0)
    with tracer.Graph() as graph:
        y, z = x * w, x * w
    (row,) = graph.summary()
    assert (row.op, row.count, row.kept_bytes) == ("mul", 2, 16)
    assert graph.kept_bytes() == 16
    del y, z


def test_remove_releases_what_the_call_saved() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph() as graph:
        y = x.tanh()
    graph.remove(y)
    assert graph.kept_bytes() == 0
    with pytest.raises(tracer.FreedGraphError, match="tanh"):
        y.sum().backward()


def test_remove_needs_a_recorded_call() -> None:
    with pytest.raises(tracer.NoHistoryError):
        tracer.Graph().remove(leaf32(1.0))


def test_clear_releases_everything_and_later_calls_are_recorded_anew() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph() as graph:
        y = x.tanh().exp()
        graph.clear()
        z = x.tanh()
    assert graph.counts() == {"tanh": 1}
    with pytest.raises(tracer.FreedGraphError):
        y.sum().backward()
    z.sum().backward()


def test_repr_gives_the_counts() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph() as graph:
        y = x.tanh()
    assert repr(graph) == "<tracer.Graph: 1 calls, 1 ops, 8 bytes kept for backward>"
    del y


def test_nodes_go_with_the_tensors_that_own_them() -> None:
    x = leaf32(1.0)
    with tracer.Graph() as graph:
        y = (x * 2).tanh()
        assert len(graph) == 2
        del y
        assert len(graph) == 0


def test_a_graph_of_one_thread_does_not_record_another() -> None:
    x = leaf32(1.0)
    kept = []
    with tracer.Graph() as graph:
        thread = threading.Thread(target=lambda: kept.append(x * 2))
        thread.start()
        thread.join()
    assert len(graph) == 0 and kept[0].requires_grad


def test_dead_references_are_dropped_as_recording_goes_on() -> None:
    x = leaf32(1.0)
    with tracer.Graph() as graph:
        for _ in range(20_000):
            x * 2
    assert len(graph._nodes) < 10_000


def test_backward_order_of_several_roots_is_shared() -> None:
    x = leaf32(1.0)
    y = x * 2
    a, b = y.tanh(), y.exp()
    assert len(backward_order([a._node, b._node])) == 4  # type: ignore[attr-defined]


def test_outside_a_graph_a_call_notes_nothing() -> None:
    assert current.graph is None
    y = (leaf32(1.0) * 2).tanh()
    assert len(tracer.Graph()) == 0 and y.requires_grad


def test_the_graph_of_a_result_is_found_by_walking_back() -> None:
    x = leaf32(1.0, 2.0)
    a, b = (x * 2).unbind()
    y = a * b.tanh()
    unrelated = x.exp()
    graph = tracer.graph_of(y)
    assert [node.op for node in graph] == ["mul", "unbind", "tanh", "mul"]
    assert graph.kept_bytes() > 0 and not graph.has_cycle()
    assert len(graph.backward_order(y)) == len(graph) + 3  # two results of unbind, one leaf
    del unrelated


def test_the_graph_of_a_result_keeps_nothing_alive() -> None:
    y = leaf32(1.0).exp().tanh()
    graph = tracer.graph_of(y)
    assert len(graph) == 2
    del y
    assert len(graph) == 0


def test_the_graph_of_a_result_without_history_raises() -> None:
    with pytest.raises(tracer.NoHistoryError, match="graph_of"):
        tracer.graph_of(torch.ones(1))


@pytest.mark.parametrize("op", [lambda x: x + 1, lambda x: x.unbind()[0], mystery], ids=["add", "unbind", "mystery"])
def test_backward_through_what_was_removed_says_so(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    y = op(leaf32(1.0, 2.0))
    tracer.graph_of(y).remove(y)
    with pytest.raises(tracer.FreedGraphError, match="removed from its graph"):
        y.sum().backward()


def test_recorded_counts_calls_that_are_gone() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        for _ in range(10_000):
            x.sin()
        kept = x.sin()
    assert graph.recorded() == 10_001 and len(graph) == 1
    del kept
