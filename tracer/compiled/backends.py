"""What runs a captured graph: torch's inductor, the graph itself, or a function of the user's."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, inductor
from tracer.errors import GradientArgumentError

Run = Callable[..., Sequence[Any]]
#: A backend of the user's: ``backend(graph_module, example_inputs)`` returns what is called with the inputs, as for ``torch.compile``.
Backend = str | Callable[[torch.fx.GraphModule, list[torch.Tensor]], Run] | None


@functools.cache
def default_backend() -> str:
    """``"inductor"`` where a C++ compiler is found, else ``"replay"``."""
    return "inductor" if any(map(shutil.which, ("g++", "clang++", "c++", "cl"))) else "replay"


def check_backend(backend: Backend) -> None:
    """Raise ``GradientArgumentError`` for what is no backend."""
    if backend is not None and not callable(backend) and backend not in ("inductor", "replay"):
        raise GradientArgumentError(
            f"backend={backend!r}: it is 'inductor', 'replay', a function of a graph module and its example inputs, or None"
        )


def build(backend: Backend, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Run:
    """What runs ``graph``; ``inputs`` are plain tensors to build it for. Called with interception and grad mode off."""
    chosen = default_backend() if backend is None else backend
    if chosen == "replay":
        return graph.forward
    with DisableTorchFunctionSubclass(), torch.no_grad():
        if callable(chosen):
            return chosen(graph, inputs)
        places = _places_of_symbols(inputs)
        return _given_symbols(graph, inputs, places) if places else inductor().compile(graph, inputs)


def _places_of_symbols(inputs: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """For each symbolic size, an input and a dimension that has it."""
    found: dict[Any, tuple[int, int]] = {}
    for position, tensor in enumerate(inputs):
        for dim, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                found.setdefault(size.node.expr, (position, dim))
    return list(found.values())


def _given_symbols(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], places: list[tuple[int, int]]) -> Run:
    """Inductor's run of a graph of symbolic sizes. It wants each symbol as an input, in front, as torch.compile gives it."""
    symbols: list[Any] = [inputs[position].shape[dim] for position, dim in places]
    twin = torch.fx.Graph()
    for number, symbol in enumerate(symbols):
        twin.placeholder(f"size_{number}").meta["val"] = symbol
    twin.output(twin.graph_copy(graph.graph, {}))
    run = inductor().compile(torch.fx.GraphModule(graph, twin), [*symbols, *inputs])

    def run_with_sizes(*given: torch.Tensor) -> Any:
        return run(*[given[position].shape[dim] for position, dim in places], *given)

    return run_with_sizes
