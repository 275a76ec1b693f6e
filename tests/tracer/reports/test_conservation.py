"""``tracer.conservation``: where the sum of value times gradient is lost."""

from __future__ import annotations

import pytest
import torch
from support.leaves import leaf, tracked

import nn
import ops_registry
import tracer


def network(bias: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 4, bias), torch.nn.ReLU(), torch.nn.Linear(4, 2, bias)]
    return nn.track(torch.nn.Sequential(*layers).double())


def test_a_network_of_linear_layers_and_relus_without_bias_conserves() -> None:
    model = network(bias=False)
    with tracer.Graph(values=True) as graph:
        loss = model(tracked([[1.0, 2.0, -3.0]])).sum()
    report = tracer.conservation(loss, graph)
    assert str(report).startswith("Conserved") and len(report) == 4
    for row in report:
        assert row.flow_in == pytest.approx(loss.item()) and row.leak == pytest.approx(0.0, abs=1e-12)


def test_a_bias_leaks_what_it_adds() -> None:
    model = network(bias=True)
    with tracer.Graph(values=True, sites=True) as graph:
        loss = model(tracked([[1.0, 2.0, -3.0]])).sum()
    grads = dict(
        zip(
            dict(model.named_parameters()),
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True),
            strict=True,
        )
    )
    report = tracer.conservation(loss, graph)
    leaks = {row.site.module: row.leak for row in report if row.op == "linear" and row.site is not None}
    for path in ("0", "2"):
        wanted = (model[int(path)].bias.detach() * grads[f"{path}.bias"]).sum().item()
        assert leaks[path] == pytest.approx(wanted)
    assert str(report).startswith("Not conserved") and abs(report.rows[0].leak) == max(map(abs, leaks.values()))


def test_a_product_of_two_inputs_passes_its_flow_on_twice() -> None:
    x, y = leaf(2.0), leaf(3.0)
    with tracer.Graph(values=True) as graph:
        z = x * y
    (row,) = tracer.conservation(z, graph).rows
    assert (row.flow_in, row.flow_out, row.leak) == (6.0, 12.0, -6.0)


def test_a_rule_of_relevance_shows_what_it_loses() -> None:
    model = network(bias=False)
    with tracer.Graph(values=True) as graph, ops_registry.use({torch.relu: lambda grad, default: 0.5 * default(grad)}):
        loss = model(tracked([[1.0, 2.0, -3.0]])).sum()
    worst = tracer.conservation(loss, graph).rows[0]
    assert worst.op == "relu" and worst.leak == pytest.approx(worst.flow_in / 2)


def test_lists_and_several_results_add_up() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0)
    with tracer.Graph(values=True) as graph:
        first, second = torch.cat([x, y]).split([1, 2])
        loss = first.sum() + (2 * second).sum()
    assert str(tracer.conservation(loss, graph)).startswith("Conserved")


def test_grad_outputs_weight_the_loss() -> None:
    with tracer.Graph(values=True) as graph:
        y = leaf(1.0, 2.0) * 3
    (row,) = tracer.conservation(y, graph, torch.tensor([1.0, 10.0]).double()).rows
    assert row.flow_in == 63.0 and row.leak == 0.0


def test_a_graph_without_values_says_how_to_keep_them() -> None:
    with tracer.Graph() as graph:
        y = leaf(1.0).exp()
    with pytest.raises(tracer.NotNotedError, match=r"values=True"):
        tracer.conservation(y, graph)
