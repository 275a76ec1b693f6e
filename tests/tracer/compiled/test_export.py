"""``tracer.export_graph``: one graph, which says where its nodes come from."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import nn
import ops_registry
import tracer


def graph_of_a_step() -> torch.fx.GraphModule:
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return tracer.export_graph(step, torch.randn(5, 4), torch.randint(3, (5,)))


def test_inputs_are_named_after_parameters_and_arguments() -> None:
    names = [node.name for node in graph_of_a_step().graph.nodes if node.op == "placeholder"]
    assert names == ["model_0_weight", "model_0_bias", "model_2_weight", "model_2_bias", "x", "y"]


def test_backward_nodes_name_their_rule_and_module() -> None:
    origins = [node.meta["origin"] for node in graph_of_a_step().graph.nodes if "origin" in node.meta]
    assert {(o.module, o.rule) for o in origins} >= {
        ("0", None),
        ("0", "linear"),
        ("1", "relu"),
        ("2", "linear"),
        ("", "log_softmax"),
    }
    assert {o.file for o in origins} == {__file__}


def test_it_reads_as_code_with_the_users_lines() -> None:
    text = graph_of_a_step().print_readable(print_output=False)
    assert "backward of linear of 2, code: loss = F.cross_entropy(model(x), y)" in text
    assert "_2_grad_linear_mm" in text
    assert "No stacktrace found" not in text and text.startswith("class step(")


def test_backward_nodes_say_where_their_formula_is_written() -> None:
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.ReLU()))

    def guided(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return grad.clamp(min=0) * (result > 0)

    def step(x: torch.Tensor) -> None:
        with ops_registry.use({torch.relu: guided}, where="2"):
            hidden = tracer.checkpoint(model, x)
        hidden.sum().backward()

    origins = {
        n.name: n.meta["origin"]
        for n in tracer.export_graph(step, torch.randn(5, 4)).graph.nodes
        if n.meta.get("origin")
    }
    assert origins["_2_grad_relu_clamp"].formula == f"test_export.py:{guided.__code__.co_firstlineno}"
    assert origins["_1_grad_relu_threshold_backward"].formula.startswith("activations.py:")
    again = origins["_1_again_relu"]
    assert again.again and (again.module, again.rule) == ("1", None)


def test_numbers_made_of_sizes_have_an_origin_too() -> None:
    layer = nn.track(torch.nn.BatchNorm1d(3))
    graph = tracer.export_graph(lambda x: layer(x).square().mean().backward(), torch.randn(5, 3), dynamic=True)
    assert all("origin" in node.meta for node in graph.graph.nodes if node.op == "call_function")


def test_it_runs_and_gives_gradients_then_results() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = layer(x).square().sum()
        loss.backward()
        return loss

    graph = tracer.export_graph(step, x)
    values = {"weight": layer.weight.detach(), "bias": layer.bias.detach()}
    inputs = [
        x if node.name == "x" else values[node.name.rpartition("_")[2]]
        for node in graph.graph.nodes
        if node.op == "placeholder"
    ]
    results = graph(*inputs)
    assert graph.meta["results"] == ["gradient of layer.weight", "gradient of layer.bias", "returned[0]"]
    layer(x).square().sum().backward()
    torch.testing.assert_close(results[0], layer.weight.grad)
    torch.testing.assert_close(results[1], layer.bias.grad)


def test_tensors_without_elements_are_not_joined() -> None:
    """Caches of keys begin so; inductor would lay out the result in another way than the views of it were captured for."""
    layer = nn.track(torch.nn.Linear(4, 4))

    def step(x: torch.Tensor) -> None:
        torch.cat([torch.tensor([]), layer(x).t()], -1).view(-1).square().sum().backward()

    graph = tracer.export_graph(step, torch.randn(3, 4)).graph
    assert not [node for node in graph.nodes if node.target is torch.ops.aten.cat.default]
    tracer.compile(step, backend="replay", check=True)(torch.randn(3, 4))
