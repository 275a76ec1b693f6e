"""``tracer.path``: a shortest way from one tensor to another, and how many there are."""

from __future__ import annotations

import json

import pytest
import torch

import tracer


def leaf(*shape: int) -> torch.Tensor:
    return tracer.tensor(torch.randn(*shape), requires_grad=True)


def test_the_calls_of_a_shortest_way_stand_in_their_order() -> None:
    x = leaf(3)
    with tracer.Graph(sites=True):
        y = (x.exp().sin() + x.tanh()).sum()
    report = tracer.path(x, y)
    assert [row.op for row in report] == ["tanh", "add", "sum"]
    assert [row.input for row in report] == ["input", "other", "input"]
    assert report.verdict.startswith("2 ways") and "test_ways.py:" in str(report)


def test_one_way_is_told_as_one() -> None:
    x = leaf(3)
    assert tracer.path(x, x.exp().sum()).verdict.startswith("1 way ") and len(tracer.path(x, x.exp())) == 1


def test_ways_are_counted_by_the_calls_that_they_go_through() -> None:
    x = leaf(3)
    y = x
    for _ in range(10):
        y = y.sin() + y.cos()
    assert tracer.path(x, y).verdict.startswith("1,024 ways")
    assert tracer.path(x, x * x).verdict.startswith("1 way ")


def test_ways_without_number_are_told_as_more_than_a_bound() -> None:
    x = leaf(3)
    y = x
    for _ in range(200):
        y = y + y.sin()
    report = tracer.path(x, y)
    assert report.verdict.startswith("more than 1,000,000,000,000 ways") and len(report) == 200


def test_a_place_in_a_list_is_told() -> None:
    x = leaf(3)
    assert tracer.path(x, torch.cat([leaf(2), x])).rows[0].input == "tensors[1]"


def test_several_results_of_one_call_are_told_apart() -> None:
    x = leaf(4)
    a, b = x.chunk(2)
    y, z = a.exp(), b.exp()
    assert [row.op for row in tracer.path(a, y)] == ["exp"]
    assert tracer.path(a, z).verdict.startswith("no way: no recorded call on x")
    assert tracer.path(a, b).verdict.startswith("no way: no recorded call on x")
    assert [row.op for row in tracer.path(x, b)] == ["chunk"]


def test_the_way_from_a_parameter_goes_through_checkpoints_and_levels_of_vmap() -> None:
    x = leaf(2, 3)
    y = torch.vmap(lambda row: row.exp())(tracer.checkpoint(lambda t: t.sin() * 2, x)).sum()
    assert [row.op for row in tracer.path(x, y)] == ["sin", "mul", "vmap", "sum"]


def test_a_native_leaf_has_ways_too() -> None:
    native = torch.ones(3, requires_grad=True)
    assert [row.op for row in tracer.path(native, leaf(3) * native)] == ["mul"]


def test_the_same_tensor_is_no_way() -> None:
    x = leaf(3)
    assert "the same value" in tracer.path(x, x).verdict


def test_without_a_way_the_cut_is_named() -> None:
    x = leaf(3)
    with tracer.Graph(sites=True) as graph:
        y = x.exp()
        z = y.detach() * leaf(3)
    report = tracer.path(x, z, graph)
    assert report.rows == [] and "cut by detach" in report.verdict and "test_ways.py:" in report.verdict
    assert "path(x, y, graph) names the place" in str(tracer.path(x, z))


def test_a_result_without_history_is_told_with_its_cut() -> None:
    x = leaf(3)
    with tracer.Graph(sites=True) as graph, torch.no_grad():
        y = x.exp()
    assert tracer.path(x, y, graph).verdict.startswith("no way: y has no history: the history of x was cut by no_grad")


def test_the_wrong_way_round_is_told() -> None:
    x = leaf(3)
    assert "x came from y" in tracer.path(x.exp(), x).verdict


def test_a_tensor_that_wants_no_gradient_has_no_way() -> None:
    assert "does not require grad" in tracer.path(torch.ones(3), leaf(3).exp()).verdict


def test_a_value_that_was_written_after_is_no_origin() -> None:
    h = leaf(3) * 2
    y = h.sum()
    h.mul_(3)
    assert "written into after" in tracer.path(h, y).verdict


def test_the_report_can_be_dumped() -> None:
    x = leaf(3)
    assert json.loads(json.dumps(tracer.path(x, x.exp()).to_dict()))["rows"][0]["op"] == "exp"


@pytest.mark.slow
def test_100_000_calls_are_gone_through_without_recursion() -> None:
    x = leaf(1)
    h = x
    for _ in range(100_000):
        h = h + 1
    assert len(tracer.path(x, h)) == 100_000
