"""``tracer.conservation``: where the flow of value times gradient is not conserved."""

from __future__ import annotations

import pytest
import torch

import nn
import ops_registry
import tracer


def network(*, bias: bool, inplace: bool = False) -> torch.nn.Module:
    layers = [torch.nn.Linear(4, 5, bias=bias), torch.nn.ReLU(inplace=inplace), torch.nn.Linear(5, 3, bias=bias)]
    return nn.track(torch.nn.Sequential(*layers).double())


def leaf() -> torch.Tensor:
    return tracer.tensor(torch.randn(2, 4, dtype=torch.float64), requires_grad=True)


@pytest.mark.parametrize("inplace", [False, True])
def test_linear_layers_without_bias_and_relus_conserve(inplace: bool) -> None:
    net, x = network(bias=False, inplace=inplace), leaf()
    with tracer.Graph(values=True) as graph:
        loss = net(x).sum()
    report = tracer.conservation(loss, graph)
    assert report.verdict.startswith("conserved") and len(report) == 4
    assert all(abs(row.leak) < 1e-9 for row in report)


def test_a_bias_leaks_bias_times_gradient() -> None:
    net, x = network(bias=True), leaf()
    with tracer.Graph(values=True, sites=True) as graph:
        loss = net(x).sum()
    report = tracer.conservation(loss, graph)
    biases = [net[0].bias, net[2].bias]
    grads = torch.autograd.grad(loss, biases)
    right = sorted([float((b.detach() * g).sum()) for b, g in zip(biases, grads, strict=True)], key=lambda v: -abs(v))
    assert [row.leak for row in report][:2] == pytest.approx(right)
    assert [row.op for row in report][:2] == ["linear", "linear"] and "2 of 4" in report.verdict
    assert "in 0" in str(report) or "in 2" in str(report)


def test_a_rule_that_loses_relevance_is_found() -> None:
    net, x = network(bias=False), leaf()
    with ops_registry.use({torch.relu: lambda grad: grad * 0.5}), tracer.Graph(values=True) as graph:
        loss = net(x).sum()
    report = tracer.conservation(loss, graph)
    assert "1 of 4" in report.verdict and report.rows[0].op == "relu"


def test_a_product_of_activations_gives_twice_what_it_got() -> None:
    x = leaf()
    with tracer.Graph(values=True) as graph:
        loss = (torch.cat([x, x]) * torch.cat([x, x]).relu()).sum()
    (product,) = [row for row in tracer.conservation(loss, graph) if row.op == "mul"]
    assert product.gone == pytest.approx(2 * product.come)


def test_several_results_are_summed() -> None:
    x = leaf()
    with tracer.Graph(values=True) as graph:
        a, b = x.chunk(2)
        loss = (a + b * 2).sum()
    assert tracer.conservation(loss, graph).verdict.startswith("conserved")


def test_the_option_that_keeps_values_is_named() -> None:
    with tracer.Graph() as graph:
        loss = leaf().relu().sum()
    with pytest.raises(tracer.NotNotedError, match=r"values=True"):
        tracer.conservation(loss, graph)


def test_a_flow_needs_an_input_that_requires_grad() -> None:
    net = network(bias=False)
    with tracer.Graph(values=True) as graph:
        loss = net(torch.ones(2, 4, dtype=torch.float64)).sum()
    with pytest.raises(tracer.NoHistoryError, match="requires grad"):
        tracer.conservation(loss, graph)
