"""``check=True``: the first call of each graph beside the eager step, from the same state and the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.backprop.api import grad as gradient_of
from tracer.compiled.graphs import StepGraph
from tracer.compiled.joint import without_hooks
from tracer.compiled.module_graph import ModuleGraph
from tracer.compiled.nests import flatten
from tracer.compiled.replay import Replay
from tracer.compiled.shared_memory import name_at
from tracer.errors import CompiledStepError
from tracer.tracked_tensor import plain_alias

_GRAD: Any = torch.Tensor.grad
#: How far a number may be from the eager one: so many units in the last place of the largest number of its tensor.
UNITS = 2000


class _Moment:
    """Values and gradients of all tensors, and the random state, at one moment."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        with torch.no_grad(), DisableTorchFunctionSubclass():
            self.wanted = [tensor.requires_grad for tensor in tensors]
            self.values = [plain_alias(tensor).clone() for tensor in tensors]
            self.grads = [_GRAD.__get__(tensor) for tensor in tensors]
            self.grad_values = [None if grad is None else plain_alias(grad).clone() for grad in self.grads]
        self.random = torch.get_rng_state()
        self.random_on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore(self) -> None:
        """As if nothing had happened since: version counters too, since ``.data`` counts no writes."""
        with torch.no_grad(), DisableTorchFunctionSubclass():
            for tensor, wanted, value, grad, grad_value in zip(
                self.tensors, self.wanted, self.values, self.grads, self.grad_values, strict=True
            ):
                tensor.data.copy_(value)
                if tensor.requires_grad != wanted:
                    tensor.requires_grad_(wanted)
                if grad is not None and grad_value is not None:
                    grad.data.copy_(grad_value)
                _GRAD.__set__(tensor, grad)
        torch.set_rng_state(self.random)
        if self.random_on_gpus is not None:
            torch.cuda.set_rng_state_all(self.random_on_gpus)


def checked_call(graph: StepGraph, step: Callable[[], Any], tensors: list[torch.Tensor]) -> Any:
    """Run ``step`` eagerly, put everything back, run the graph, and return what it returns.

    Raises ``CompiledStepError`` where a result, a gradient or a tensor that was written differs by more than ``UNITS`` units in the last
    place; then all is as before the call. A graph that draws random numbers is compared as it is replayed: compilers draw their own.
    """
    before = _Moment(tensors)
    try:
        expected = _leaves(step())
        after = _Moment(tensors)
    finally:
        before.restore()
        if graph.captured.writes is not None:
            graph.captured.writes.undo()
    if graph.draws and not isinstance(graph.run, Replay):
        compiled, graph.run = graph.run, Replay(graph.captured.graph)
        try:
            _compare(graph, _leaves(graph(tensors)), expected, after, before)
        finally:
            graph.run = compiled
            before.restore()
        return graph(tensors)
    result = graph(tensors)
    _compare(graph, _leaves(result), expected, after, before)
    return result


def checked_module_call(graph: ModuleGraph, module: Callable[[], Any], tensors: list[torch.Tensor]) -> None:
    """Run ``module`` eagerly and then the graphs, forward and back from random cotangents; in the end all is as before.

    Raises ``CompiledStepError`` where a result, a gradient or a tensor that was written differs by more than ``UNITS`` units in the last
    place. A graph that draws random numbers is compared as it is replayed: compilers draw their own.
    """
    before = _Moment(tensors)
    try:
        expected = _results_and_gradients(module(), tensors)
        after = _Moment(tensors)
    finally:
        before.restore()
        if graph.captured.writes is not None:
            graph.captured.writes.undo()
    compared = graph.replayed() if graph.draws else graph
    try:
        _compare(graph, _results_and_gradients(compared(tensors, tensors), tensors), expected, after, before)
    finally:
        before.restore()


def _results_and_gradients(value: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    results = flatten(value)[0]
    roots = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        cotangents = [torch.randn(t.shape, dtype=t.dtype, generator=numbers).to(t.device) for t in roots]
    with without_hooks(tensors):
        gradients = gradient_of(roots, wanted, cotangents, allow_unused=True) if roots and wanted else ()
    return [*_leaves(value), *_leaves(list(gradients))]


def _compare(
    graph: StepGraph | ModuleGraph, got: list[Any], expected: list[Any], after: _Moment, before: _Moment
) -> None:
    now = _Moment(after.tensors)
    pairs = [(f"result {i}", a, b) for i, (a, b) in enumerate(zip(got, expected, strict=True))]
    for i, (value, eager) in enumerate(zip(now.values, after.values, strict=True)):
        pairs.append((name_at(graph.names, i), value, eager))
    for i, (grad, eager_grad) in enumerate(zip(now.grad_values, after.grad_values, strict=True)):
        pairs.append((f".grad of {name_at(graph.names, i)}", grad, eager_grad))
    found = [f"{name}: {told}" for name, a, b in pairs if (told := _difference(a, b))]
    if found:
        before.restore()
        raise CompiledStepError(
            f"a compiled step does not do what the eager one does: {'; '.join(found[:5])}. Try backend='replay': if that is equal, the "
            f"compiler is to blame; otherwise the step reads something that cannot be seen."
        )


def _leaves(value: Any) -> list[Any]:
    """What a step returned, tensors as copies without history."""
    with torch.no_grad(), DisableTorchFunctionSubclass():
        return [plain_alias(leaf).clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in flatten(value)[0]]


def _difference(got: Any, expected: Any) -> str:
    """How two values differ, in words; empty where they are equal as far as rounding goes."""
    if not (isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor)):
        same = type(got) is type(expected) and (isinstance(got, torch.Tensor) or got == expected)
        return "" if same else f"{_told(got)} for {_told(expected)}"
    if got.layout is not torch.strided and expected.layout is not torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{_told(got)} for {_told(expected)}"
    if not (got.is_floating_point() or got.is_complex()):
        return "" if torch.equal(got, expected) else "other values"
    largest = expected.abs().nan_to_num(0.0, 0.0, 0.0).amax().item() if expected.numel() else 0.0
    allowed = UNITS * torch.finfo(got.dtype).eps * max(largest, 1e-3)
    if torch.allclose(got, expected, rtol=0.0, atol=allowed, equal_nan=True):
        return ""
    return f"differs by {(got - expected).abs().amax().item():.3g}, where its largest value is {largest:.3g}"


def _told(value: Any) -> str:
    return f"a {value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
