"""A joint graph split into a forward and a backward graph by torch's partitioner, with recomputation, and what runs the two."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ops_registry.torch_private import (
    BoxedCodeGen,
    DisableTorchFunctionSubclass,
    compile_half,
    inductor_decompositions,
    rename_node,
    split_for_inductor,
    split_for_memory,
)
from tracer.compiled.backends import Backend, build
from tracer.compiled.functional import functionalised
from tracer.compiled.random_numbers import draws
from tracer.compiled.simplify import give_own_memory

_aten = torch.ops.aten
#: Takes its inputs in a list, and empties that.
Boxed = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass
class Halves:
    """What runs a module forward, and back."""

    forward: Boxed
    backward: Boxed | None
    #: For each input of the forward graph the position of a tensor.
    inputs: list[int]
    #: Inputs of the backward graph: names of what the forward graph saves, then numbers of cotangents.
    saved: list[str]
    cotangents: list[int]
    #: For each gradient the numbers of the cotangents that it depends on.
    depends: list[frozenset[int]]


def halves(
    backend: Backend, graph: torch.fx.GraphModule, inputs: Sequence[int], results: int, written: Sequence[int]
) -> Halves:
    """Split ``graph``, and build what runs its halves. Called with interception and grad mode off.

    ``inputs``: the positions of tensors, or -1 less the number of a cotangent. Of the results the first ``results`` are the module's, then
    come the values of the tensors ``written``, which the forward graph writes itself, and the gradients.
    """
    graph = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))  # the partitioner writes into it
    name_inputs(graph.graph, inputs)
    depends = _dependence(graph.graph, results + len(written))
    if backend == "inductor":
        graph = _decomposed(graph)
        name_inputs(graph.graph, inputs)
        forward, backward = split_for_inductor(graph, _examples(graph), results + len(written))
    else:
        # Duplicates are merged by what calls look like, and two that draw in place look the same.
        forward, backward = split_for_memory(graph, _examples(graph), results + len(written), not draws(graph))
    saved = [str(node.target) for node in backward.graph.find_nodes(op="placeholder")]
    cotangents = [_number(name) for name in saved if name.startswith("tangents")]
    saved = saved[: len(saved) - len(cotangents)]
    _write_in_forward(forward, results, written)
    output = backward.graph.output_node()
    give_own_memory(backward.graph, output, range(len(output.args[0])))  # type: ignore[arg-type]
    backward.recompile()
    run_forward, run_backward = _build(backend, forward, backward, results, len(saved))
    positions = [_number(str(node.target)) for node in forward.graph.find_nodes(op="placeholder")]
    return Halves(run_forward, run_backward, positions, saved, cotangents, depends)


def forward_alone(
    backend: Backend, graph: torch.fx.GraphModule, inputs: Sequence[int], results: int, written: Sequence[int]
) -> Halves:
    """The same for a graph without gradients."""
    graph = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    name_inputs(graph.graph, inputs)
    _write_in_forward(graph, results, written)
    run = build(backend, graph, _examples(graph))
    return Halves(lambda values: run(*values), None, list(inputs), [], [], [])


def name_inputs(graph: torch.fx.Graph, inputs: Sequence[int]) -> None:
    """Names by which the partitioner tells the inputs of the forward pass from cotangents."""
    for node, position in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        rename_node(node, f"primals_{position}" if position >= 0 else f"tangents_{-1 - position}")
        node.target = node.name


def _number(name: str) -> int:
    return int(name.partition("_")[2])


def _examples(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    return [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]


def _dependence(graph: torch.fx.Graph, forward: int) -> list[frozenset[int]]:
    """For each result behind the first ``forward``, the numbers of the cotangents that it depends on."""
    found: dict[torch.fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        own = {_number(node.name)} if node.op == "placeholder" and node.name.startswith("tangents") else set()
        found[node] = frozenset(own).union(*(found[before] for before in node.all_input_nodes))
    results: Any = graph.output_node().args[0]
    return [found[node] for node in results[forward:]]


def _decomposed(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph in the ops that inductor knows, without writes."""
    run = functionalised(lambda tensors: graph.forward(*tensors), [])
    return make_fx(run, decomposition_table=inductor_decompositions(), tracing_mode="fake")(*_examples(graph))


def _write_in_forward(forward: torch.fx.GraphModule, results: int, written: Sequence[int]) -> None:
    """Let the forward graph write what the module writes, at its end; what backward wants of a value before the write is copied first."""
    graph = forward.graph
    output = graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    inputs = {_number(str(node.target)): node for node in graph.find_nodes(op="placeholder")}
    targets = {inputs[position] for position in written if position in inputs}
    saved = values[results + len(written) :]
    for at, node in enumerate(saved):
        if node in targets:
            with graph.inserting_before(output):
                saved[at] = graph.call_function(_aten.clone.default, (node,))
                saved[at].meta = dict(node.meta)
    with graph.inserting_before(output):
        for position, value in zip(written, values[results : results + len(written)], strict=True):
            graph.call_function(_aten.copy_.default, (inputs[position], value)).meta = dict(value.meta)
    output.args = ((*values[:results], *saved),)
    forward.recompile()


def _build(
    chosen: Any, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int, saved: int
) -> tuple[Boxed, Boxed]:
    if chosen == "replay":
        return boxed(forward), boxed(backward)
    with DisableTorchFunctionSubclass(), torch.no_grad():
        if chosen != "inductor":
            run_forward, run_backward = chosen(forward, _examples(forward)), chosen(backward, _examples(backward))
            return lambda inputs: run_forward(*inputs), lambda inputs: run_backward(*inputs)
        forward.graph.output_node().meta["user_visible_output_idxs"] = list(range(results))
        backward.graph.output_node().meta["user_visible_output_idxs"] = []
        run, strides = compile_half(forward, _examples(forward), backward=False)
        examples = _examples(backward)
        for at, stride in enumerate(strides[results : results + saved]):
            if stride is not None and tuple(stride) != examples[at].stride():
                examples[at] = examples[at].as_strided(examples[at].shape, stride)
        return run, compile_half(backward, examples, backward=True)[0]


def boxed(graph: torch.fx.GraphModule) -> Boxed:
    """What runs a graph call by call, and lets go of each input after its last use."""
    if BoxedCodeGen is None:
        return lambda inputs: graph.forward(*inputs)
    graph.graph.set_codegen(BoxedCodeGen())
    graph.recompile()
    return graph.forward
