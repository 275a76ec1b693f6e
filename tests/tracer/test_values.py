"""``tracer.Graph(values=True)``: every argument and result of each recorded call."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from support.leaves import leaf32

import tracer


def node_of(tensor: torch.Tensor) -> tracer.graph.Node:
    return tensor._node  # type: ignore[attr-defined, no-any-return]


def test_arguments_and_result_go_by_the_names_of_the_rule() -> None:
    x, w = leaf32(1.0, 2.0), torch.tensor([3.0, 4.0])
    with tracer.Graph(values=True) as graph:
        y = torch.add(x, w, alpha=2)
    values = graph.values_of(node_of(y))
    assert set(values) == {"input", "other", "alpha", "result"}
    assert torch.equal(values["input"], torch.tensor([1.0, 2.0])) and torch.equal(values["other"], w)
    assert values["alpha"] == 2 and torch.equal(values["result"], y.detach())
    assert type(values["input"]) is torch.Tensor and not values["result"].requires_grad


def test_a_list_of_tensors_is_kept_as_one() -> None:
    x = leaf32(1.0)
    with tracer.Graph(values=True) as graph:
        y = torch.cat([x, x * 2])
    assert [t.tolist() for t in graph.values_of(node_of(y))["tensors"]] == [[1.0], [2.0]]


def test_all_results_of_a_call_are_kept() -> None:
    x = leaf32(3.0, 1.0)
    with tracer.Graph(values=True) as graph:
        values, _ = x.sort()
    kept = graph.values_of(node_of(values))["result"]
    assert kept[0].tolist() == [1.0, 3.0] and kept[1].tolist() == [1, 0]


def test_what_an_in_place_op_wrote_over_is_kept_as_it_was() -> None:
    with tracer.Graph(values=True) as graph:
        y = leaf32(-1.0, 2.0) * 1
        y.relu_()
    values = graph.values_of(node_of(y))
    assert values["input"].tolist() == [-1.0, 2.0] and values["result"].tolist() == [0.0, 2.0]


def test_a_value_that_was_written_over_since_is_refused_and_the_others_are_there() -> None:
    w = torch.tensor([3.0, 4.0])
    with tracer.Graph(values=True) as graph:
        y = leaf32(1.0, 2.0) + w
    w.zero_()
    values = graph.values_of(node_of(y))
    assert values["result"].tolist() == [4.0, 6.0]
    with pytest.raises(tracer.OverwrittenError, match=r"add was recorded with 'other'.*overwritten in place"):
        values["other"]


def test_an_argument_that_shares_memory_with_what_is_written_is_refused() -> None:
    with tracer.Graph(values=True) as graph:
        y = leaf32(1.0, 2.0) * 1
        y.mul_(y.detach())
    with pytest.raises(tracer.OverwrittenError, match="'other'"):
        graph.values_of(node_of(y))["other"]


def test_backward_is_not_troubled_by_values_that_only_the_graph_keeps() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(values=True):
        y = x * 3
        loss = y.relu_().sum()  # mul's result is written over; its rule never wanted it
    loss.backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]


def test_kept_bytes_count_the_values_and_memory_that_is_shared_once() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph() as plain:
        a = x + 1
    with tracer.Graph(values=True) as graph:
        b = x + 1
    assert plain.kept_bytes() == 0 and graph.kept_bytes() == 16  # x and the result
    assert graph.summary()[0].kept_bytes == 16
    del a, b


def test_values_go_with_the_call_without_the_garbage_collector() -> None:
    x = leaf32(1.0)
    gc.disable()
    try:
        with tracer.Graph(values=True) as graph:
            y = x.exp() * x
            kept = weakref.ref(graph.values_of(node_of(y))["result"])
            del y
            assert kept() is None and len(graph) == 0
    finally:
        gc.enable()


def test_without_values_the_error_says_how_to_keep_them() -> None:
    with tracer.Graph() as graph:
        y = leaf32(1.0).exp()
    with pytest.raises(tracer.NotNotedError, match=r"tracer\.Graph\(values=True\)"):
        graph.values_of(node_of(y))


def test_an_inference_tensor_among_the_values_is_refused_when_it_is_read() -> None:
    with torch.inference_mode():
        c = torch.tensor([3.0])
    with tracer.Graph(values=True) as graph:
        y = leaf32(1.0) + c
    with pytest.raises(tracer.OverwrittenError, match="inference mode"):
        graph.values_of(node_of(y))["other"]


def test_remove_lets_go_of_the_values() -> None:
    with tracer.Graph(values=True) as graph:
        y = leaf32(1.0).exp()
    graph.remove(y)
    assert graph.kept_bytes() == 0
