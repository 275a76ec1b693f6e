"""torch's engine, as torch's own Python code calls it: passes over our nodes go to our sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.autograd.graph import GradientEdge

from ops_registry.torch_private import DisableTorchFunctionSubclass, ImperativeEngine, TensorBase
from tracer.backprop.api import backward, grad
from tracer.backprop.progress import innermost
from tracer.node import Node
from tracer.tracked_tensor import Tensor

#: Whether torch's own autograd is on for a tensor.
_NATIVE: Any = TensorBase.requires_grad


class Engine(ImperativeEngine):
    """``torch.autograd.Variable._execution_engine``. What is not ours it leaves to torch."""

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` when the backward pass in progress has come through; for hooks."""
        sweep = innermost()
        if sweep is None:
            super().queue_callback(callback)
        else:
            sweep.callbacks.append(callback)

    def run_backward(self, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """One pass from ``tensors``, or from gradient edges."""
        if any(map(_is_ours, tensors)):
            return _sweep(tuple(tensors), *args, **kwargs)
        return super().run_backward(tensors, *args, **kwargs)


def _sweep(
    tensors: tuple[Any, ...],
    grad_tensors: tuple[Any, ...],
    keep_graph: bool,
    create_graph: bool,
    inputs: tuple[Any, ...] = (),
    allow_unreachable: bool = False,
    accumulate_grad: bool = False,
) -> tuple[Any, ...]:
    if accumulate_grad or not inputs:
        backward(tensors, grad_tensors, keep_graph, create_graph, inputs=inputs or None)
        return ()
    return grad(tensors, inputs, grad_tensors, keep_graph, create_graph, allow_unused=allow_unreachable)


def _is_ours(place: Any) -> bool:
    if isinstance(place, GradientEdge):
        return isinstance(place.node, Node)
    if type(place) is not Tensor:
        return False
    with DisableTorchFunctionSubclass():
        return not _NATIVE.__get__(place)  # one that torch is to accumulate into, for once, is torch's
