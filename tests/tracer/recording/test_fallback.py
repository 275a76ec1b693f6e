"""``tracer.fallback("torch")``: the missing derivative from torch's own autograd, and only where it was asked for."""

from __future__ import annotations

import pytest
import torch
from support.custom import of_torch, pair_of_torch

import tracer


def test_the_derivative_comes_from_torch() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.fallback("torch"):
        y = of_torch(x * x, 3.0)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 12.0]


def test_the_graph_says_so() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph() as graph, tracer.fallback("torch"):
        y = of_torch(x)
    assert graph.counts() == {"torch:glassgrad_mystery": 1}
    del y


def test_several_results() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.fallback("torch"):
        a, b = pair_of_torch(x)
    (a + b).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [4.0, 6.0]


def test_one_of_several_results_suffices() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.fallback("torch"):
        _, b = pair_of_torch(x)
    b.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]


def test_the_graph_can_be_retained() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.fallback("torch"):
        y = of_torch(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None and x.grad.tolist() == [4.0, 4.0]


def test_ops_with_a_rule_keep_it() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph() as graph, tracer.fallback("torch"):
        y = x.tanh()
    assert graph.counts() == {"tanh": 1}
    del y


def test_outside_the_block_a_missing_rule_raises_again() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.fallback("torch"):
        pass
    with pytest.raises(tracer.MissingRuleError):
        of_torch(x).sum().backward()


def test_a_second_derivative_through_it_raises() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.fallback("torch"):
        y = of_torch(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(tracer.SecondDerivativeError, match="second derivative"):
        torch.autograd.grad(g.sum(), x)


def test_torch_is_the_only_source() -> None:
    with pytest.raises(tracer.UnsupportedError, match="jax"), tracer.fallback("jax"):
        pass


def test_a_second_pass_without_retain_graph_raises_for_torch_has_let_go() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with tracer.fallback("torch"):
        y = of_torch(x).sum()
    y.backward()
    with pytest.raises(tracer.FreedGraphError, match="retain_graph"):
        y.backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]
