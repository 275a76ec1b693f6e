"""torch's engine, as torch's own Python code calls it: passes over our nodes go to our sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.autograd.graph import GradientEdge

from ops_registry.torch_private import DisableTorchFunctionSubclass, ImperativeEngine, TensorBase
from tracer.backprop.api import backward, grad
from tracer.backprop.listeners import announce
from tracer.backprop.progress import innermost
from tracer.errors import UnsupportedError
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
        _refuse_lost_weights(*args, **kwargs)
        announce(tuple(tensors), None, tracked=False)
        return super().run_backward(tensors, *args, **kwargs)


def _refuse_lost_weights(
    grad_tensors: Sequence[Any], keep_graph: bool = False, create_graph: bool = False, *_: Any, **__: Any
) -> None:
    """Raise where torch's engine is to record a pass whose weights have a history of ours: it would lose that."""
    if not create_graph:
        return
    for number, weight in enumerate(grad_tensors):
        if type(weight) is Tensor and weight._node is not None:
            raise UnsupportedError(
                f"a backward pass through torch's own autograd, with create_graph=True, was weighted with a tracked tensor that requires "
                f"grad (grad_outputs[{number}], of shape {tuple(weight.shape)}): torch cannot record that, and the gradient of the weights "
                f"would be lost. Track what is differentiated (tracer.track), or detach the weights."
            )


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
