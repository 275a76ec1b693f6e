"""What runs a captured graph: torch's inductor, the graph itself, or a function of the user's."""

from __future__ import annotations

import copy
import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, inductor
from tracer.compiled.numbers import as_tensors
from tracer.compiled.replay import Replay
from tracer.errors import CaptureError, GradientArgumentError

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
    """What runs ``graph``; ``inputs`` are plain tensors to build it for. Called with interception and grad mode off.

    Raises ``CaptureError`` where inductor fails; what a function of the user's raises comes through.
    """
    chosen = default_backend() if backend is None else backend
    if chosen == "replay":
        return Replay(graph)
    graph = _reshaping(graph)
    with DisableTorchFunctionSubclass(), torch.no_grad():
        if chosen != "inductor":
            return chosen(graph, inputs)  # type: ignore[operator]
        with named_failure("step"):
            return _compiled(graph, inputs)


@contextmanager
def named_failure(what: str) -> Iterator[None]:
    """Where inductor fails inside the block, raise ``CaptureError``. ``what`` the graph is of: a step, a module."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise CaptureError(
            f"torch's inductor could not compile the graph of the {what} ({reason}). The same graph runs without a compiler: "
            f"backend='replay'. Or keep the call that inductor names out of the {what}."
        ) from error


def _reshaping(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy for compilers, which may lay out what comes before a view in another way: a view that copies where it has to."""
    graph = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in graph.graph.nodes:
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default
    as_tensors(graph.graph)
    graph.recompile()
    return graph


def _options(inputs: list[torch.Tensor]) -> dict[str, Any]:
    """Inductor's settings for a training step: on a CPU, convolutions in the layout that they have.

    Inductor gives all of them channels-last weights there. A model that is trained has new weights at each step, so each step would turn
    them, and their gradients back: a ResNet-18 took 1.8 times as long.
    """
    return {} if any(tensor.device.type != "cpu" for tensor in inputs) else {"layout_optimization": False}


def _places_of_symbols(inputs: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """For each symbolic size, an input and a dimension that has it."""
    found: dict[Any, tuple[int, int]] = {}
    for position, tensor in enumerate(inputs):
        for dim, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                found.setdefault(size.node.expr, (position, dim))
    return list(found.values())


def _compiled(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Run:
    """Inductor's run of a graph. It wants each symbolic size as an input, in front, as torch.compile gives it."""
    places, options = _places_of_symbols(inputs), _options(inputs)
    if not places:
        return inductor().compile(graph, inputs, options=options)
    symbols: list[Any] = [inputs[position].shape[dim] for position, dim in places]
    twin = torch.fx.Graph()
    for number, symbol in enumerate(symbols):
        twin.placeholder(f"size_{number}").meta["val"] = symbol
    twin.output(twin.graph_copy(graph.graph, {}))
    run = inductor().compile(torch.fx.GraphModule(graph, twin), [*symbols, *inputs], options=options)

    def run_with_sizes(*given: torch.Tensor) -> Any:
        return run(*[given[position].shape[dim] for position, dim in places], *given)

    return run_with_sizes
