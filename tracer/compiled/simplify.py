"""The captured graph made smaller: no aliases, no dead calls, no inputs that nobody reads; and each gradient in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ops_registry.torch_private import storage_key

_aten = torch.ops.aten
#: What gives its argument back, in a graph in which nothing is written before the end.
_ALIASES = frozenset({_aten.detach.default, _aten.alias.default})


def simplified(module: torch.fx.GraphModule, own: Sequence[int]) -> tuple[torch.fx.GraphModule, list[int]]:
    """The same graph, simpler, and which of its inputs are left. The results at ``own`` share their memory with nothing."""
    graph = module.graph
    for node in graph.nodes:
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    _give_own_memory(graph, output, own)
    graph.eliminate_dead_code()
    used = []
    for position, node in enumerate([node for node in graph.nodes if node.op == "placeholder"]):
        if node.users:
            used.append(position)
        else:
            graph.erase_node(node)
    return module, used


def _give_own_memory(graph: torch.fx.Graph, output: torch.fx.Node, own: Sequence[int]) -> None:
    """Copy each result at ``own`` that is in the memory of an input or of another result."""
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    taken = {_memory(node) for node in graph.nodes if node.op == "placeholder"}
    wanted = set(own)
    taken |= {_memory(node) for position, node in enumerate(results) if position not in wanted}
    for position in own:
        memory = _memory(results[position])
        if memory in taken:
            with graph.inserting_before(output):
                copied = graph.call_function(_aten.clone.default, (results[position],))
                copied.meta = dict(results[position].meta)
            results[position] = copied
        taken.add(memory)
    output.args = (results,)


def _memory(node: Any) -> int:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return storage_key(value) if isinstance(value, torch.Tensor) else id(node)


def written_inputs(graph: torch.fx.Graph, used: Sequence[int]) -> list[int]:
    """The inputs that calls of the graph write into, by their positions before it was made smaller."""
    places = dict(zip((node for node in graph.nodes if node.op == "placeholder"), used, strict=True))
    return [
        places[node.args[0]] for node in graph.nodes if node.target is _aten.copy_.default and node.args[0] in places
    ]
