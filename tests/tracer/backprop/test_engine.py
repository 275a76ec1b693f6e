"""Gradient edges as where a pass starts and ends, through ``torch.autograd`` and through torch's engine itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.leaves import leaf, native_leaf
from torch.autograd.graph import GradientEdge, get_gradient_edge

import tracer

ENGINES = [leaf, native_leaf]
Make = Callable[..., torch.Tensor]


def lists(found: Any) -> Any:
    return [None if g is None else g.tolist() for g in found]


def test_gradients_are_asked_for_at_edges_whose_tensor_is_gone() -> None:
    found = []
    for make in ENGINES:
        x = make(1.0, 2.0)
        y = x * x
        inner, outer = get_gradient_edge(y), get_gradient_edge(x)
        z = (y * y).sum()
        del y
        found.append(lists(torch.autograd.grad(z, (inner, outer), retain_graph=True)))
        end = get_gradient_edge(z)
        del z
        found.append(lists(torch.autograd.grad(end, (inner, outer), retain_graph=True)))
        found.append(lists(torch.autograd.grad(end, x)))
    assert found[:3] == found[3:] and found[0] == found[1] == [[2.0, 8.0], [4.0, 32.0]]


def test_backward_from_an_edge_fills_leaves() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        edge = get_gradient_edge(x * 3)
        torch.autograd.backward(edge, torch.ones(2, dtype=torch.float64), retain_graph=True)
        torch.autograd.backward(edge, torch.ones(2, dtype=torch.float64), inputs=get_gradient_edge(x))
        assert x.grad.tolist() == [6.0, 6.0]


def test_edges_of_several_results_of_one_call_are_told_apart() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        a, b = x.unbind()
        first, second = get_gradient_edge(a), get_gradient_edge(b)
        loss = a * 3
        del a, b
        assert lists(torch.autograd.grad(loss, (first, second), retain_graph=True, allow_unused=True)) == [3.0, None]
        assert lists(torch.autograd.grad(second, x)) == [[0.0, 1.0]]


def test_an_edge_that_is_not_reached_is_an_unused_input() -> None:
    x = leaf(1.0)
    edge = get_gradient_edge(x * 2)
    with pytest.raises(tracer.UnusedInputError, match=r"shape \(1,\)"):
        torch.autograd.grad((x * 3).sum(), edge)
    assert lists(torch.autograd.grad((x * 3).sum(), edge, materialize_grads=True)) == [[0.0]]


def test_an_edge_of_several_elements_needs_a_gradient() -> None:
    with pytest.raises(RuntimeError, match="scalar outputs"):
        torch.autograd.grad(get_gradient_edge(leaf(1.0, 2.0) * 2), leaf(1.0))


def test_the_edge_of_a_native_leaf_works_and_of_a_native_result_is_refused() -> None:
    native, tracked = native_leaf(2.0), leaf(3.0)
    made = native * 2
    loss = (native * tracked).sum()
    assert lists(torch.autograd.grad(loss, get_gradient_edge(native), retain_graph=True)) == [[3.0]]
    with pytest.raises(tracer.UnsupportedError, match="gradient edge of MulBackward0"):
        torch.autograd.grad(loss, get_gradient_edge(made))


def test_torchs_engine_hands_tracked_tensors_to_our_sweep() -> None:
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    engine: Any = torch.autograd.Variable._execution_engine
    one = torch.ones((), dtype=torch.float64)
    assert lists(engine.run_backward((y,), (one,), True, False, (x,))) == [[2.0, 4.0]]
    engine.run_backward((y,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    assert x.grad.tolist() == [2.0, 4.0]


def test_an_edge_is_torchs_own_tuple() -> None:
    x = leaf(1.0)
    edge = get_gradient_edge(x * 2)
    assert isinstance(edge, GradientEdge) and edge.output_nr == 0 and edge.node.name() == "MulBackward0"


@pytest.mark.parametrize(
    "weighted",
    [
        lambda x, v: torch.autograd.grad(x.sin(), x, v, create_graph=True),
        lambda x, v: torch.autograd.backward(x.sin(), v, create_graph=True),
        lambda x, v: torch.autograd.functional.vjp(torch.sin, x, v, create_graph=True),
        lambda x, v: torch.autograd.functional.hvp(lambda a: a.sin().sum(), x, v, create_graph=True),
    ],
)
def test_a_recorded_pass_of_torchs_weighted_with_a_tracked_tensor_is_refused(weighted) -> None:
    x, v = torch.ones(2, requires_grad=True), tracer.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(tracer.UnsupportedError, match=r"weighted with a tracked tensor.*tracer\.track"):
        weighted(x, v)


def test_a_pass_of_torchs_that_is_not_recorded_takes_any_weights() -> None:
    x, v = torch.ones(2, requires_grad=True), tracer.tensor([1.0, 2.0], requires_grad=True)
    (found,) = torch.autograd.grad(x * 3, x, v)
    assert found.tolist() == [3.0, 6.0]
