"""What a report is asked about: a graph, a tensor, a loss. Anything else is refused with what to pass instead."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd.graph import GradientEdge

from tracer.errors import ReportError, UnrecordedError
from tracer.graph import Graph
from tracer.recording.parents import any_node
from tracer.tracked_tensor import Tensor

_GRAPH = "`with tracer.Graph(sites=True) as graph:` around the forward pass makes one"


def check_graph(report: str, given: object) -> None:
    """Raise ``ReportError`` where ``given`` is no graph."""
    if isinstance(given, Graph):
        return
    of_it = "; tracer.graph_of(loss) finds the graph of a loss afterwards" if isinstance(given, torch.Tensor) else ""
    raise ReportError(f"{report}() was given {_told(given)} for the graph. It takes a tracer.Graph: {_GRAPH}{of_it}.")


def check_tensor(report: str, role: str, given: object) -> None:
    """Raise ``ReportError`` where ``given`` is no tensor. ``role`` is what the report takes it for."""
    if not isinstance(given, torch.Tensor):
        raise ReportError(f"{report}() was given {_told(given)} for {role}. It takes a tensor{_hint(given)}.")


def check_loss(report: str, given: object, *, several: bool = False, native: bool = True) -> None:
    """Raise ``ReportError`` where ``given`` is no loss: no tensor, or one that has no history.

    ``several``: tensors and gradient edges in a tuple or list are one too. ``native``: so is a tensor whose history is in torch's own
    autograd.
    """
    losses = list(given) if several and isinstance(given, tuple | list) else [given]
    if not losses:
        raise ReportError(f"{report}() was given an empty {type(given).__name__} for the loss. It takes a tensor.")
    for loss in losses:
        if several and isinstance(loss, GradientEdge):
            continue
        check_tensor(report, "the loss", loss)
        assert isinstance(loss, torch.Tensor)
        told = f"{report}() was given a loss of shape {tuple(loss.shape)} that"
        if any_node(loss) is None:
            raise UnrecordedError(
                f"{told} does not require grad: it has no history. Give one that was computed from a tracked tensor or model that "
                f"requires grad, not under torch.no_grad() and not detached; tracer.why(parameter, loss, graph) finds the cut."
            )
        if not native and not isinstance(loss, Tensor):
            raise UnrecordedError(
                f"{told} no recorded call has made: its history is in torch's own autograd. Track the model before the forward pass, "
                f"nn.track(model), or its input, tracer.tensor(x)."
            )


def check_model(report: str, model: torch.nn.Module) -> None:
    """Raise ``ReportError`` where a module has no parameter to ask about."""
    if not _any(model.parameters()):
        raise ReportError(
            f"{report}() was asked about {_told(model)}, which has no parameters. Give the model that has them, or a tensor."
        )


def _any(things: Iterable[object]) -> bool:
    return next(iter(things), None) is not None


def _hint(given: object) -> str:
    if isinstance(given, torch.nn.Module):
        return ": call the module, and give what it returns"
    return ": mind the order of the arguments" if isinstance(given, Graph) else ""


def _told(given: object) -> str:
    if given is None or isinstance(given, bool | int | float | complex):
        return repr(given)
    kind = "tracer.Graph" if isinstance(given, Graph) else type(given).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
