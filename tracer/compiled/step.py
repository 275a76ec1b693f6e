"""``tracer.compile``: a step that is captured once for each kind of call, and from then on runs as a graph."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorGuards, set_grad_enabled, tree_flatten
from tracer.backprop.accumulate import accumulate
from tracer.compiled.backends import Backend, Run, build, check_backend
from tracer.compiled.capture import Captured, Returned, capture_step
from tracer.compiled.key import key_of_arguments, key_of_tensor, key_of_thread
from tracer.compiled.reached import Reached
from tracer.errors import CaptureError, SecondDerivativeError
from tracer.node import RaisingNode
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias

_GRAD: Any = torch.Tensor.grad
_KINDS = frozenset({torch.Tensor, Tensor, torch.nn.Parameter, torch.nn.Buffer})


@dataclass
class Entry:
    """One graph of a step, and how often it ran."""

    captured: Captured
    run: Run
    strangers: list[torch.Tensor]
    capture_seconds: float
    build_seconds: float
    calls: int = 0


class CompiledStep:
    """What ``tracer.compile`` returns: called as the step itself."""

    def __init__(
        self,
        step: Callable[..., Any],
        modules: Iterable[torch.nn.Module] | None,
        backend: Backend,
        dynamic: bool,
        check: bool,
    ) -> None:
        check_backend(backend)
        functools.update_wrapper(self, step)
        self._step = step
        self._modules = [] if modules is None else list(modules)
        self._backend = backend
        self._dynamic = dynamic
        self._check = check
        self._reached: Reached | None = None
        self._guards: Any = None
        self._state = 0
        self._states: dict[Any, tuple[int, Reached]] = {}
        self._entries: dict[Any, Entry] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        with DisableTorchFunctionSubclass():
            reached = self._look_again()
            tensors = _unique(reached, leaves)
        key = self._state, key_of_arguments(leaves, spec, reached.places), key_of_thread()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._make(reached, tensors, args, kwargs)
        entry.calls += 1
        return _run(entry, tensors)

    def graph_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
        """The graph of a call with these arguments, without running it."""
        reached = self._look_again()
        leaves, _ = tree_flatten((args, kwargs))
        with DisableTorchFunctionSubclass():
            tensors = _unique(reached, leaves)
        return self._make(reached, tensors, args, kwargs).captured.graph

    def _look_again(self) -> Reached:
        """What the step reaches now; walked anew only where something is no longer what it was."""
        reached = self._reached
        if reached is None or not (reached.unchanged() and self._guards.check(*reached.tensors)):
            reached = self._reached = Reached(self._step, self._modules)
            for tensor, name in zip(reached.tensors, reached.names, strict=True):
                _check_kind(tensor, name)
            self._guards = TensorGuards(*reached.tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            key = tuple(reached.facts), tuple([(*key_of_tensor(t), t.requires_grad) for t in reached.tensors])
            self._state, _ = self._states.setdefault(key, (len(self._states), reached))
        return reached

    def _make(self, reached: Reached, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Entry:
        names = [*reached.names, *("an argument" for _ in tensors[len(reached.tensors) :])]
        for tensor, name in zip(tensors, names, strict=True):
            _check_kind(tensor, name)
        started = time.perf_counter()
        strangers: list[torch.Tensor] = []
        captured = capture_step(lambda: self._step(*args, **kwargs), tensors, names, [None] * len(tensors))
        built = time.perf_counter()
        with DisableTorchFunctionSubclass():
            inputs = [plain_alias(tensors[i]) for i in captured.used]
        run = build(self._backend, captured.graph, inputs)
        return Entry(captured, run, strangers, built - started, time.perf_counter() - built)


def _check_kind(tensor: torch.Tensor, name: str) -> None:
    if type(tensor) not in _KINDS or tensor.layout is not torch.strided:
        raise CaptureError(
            f"{name} is a {type(tensor).__qualname__} of layout {tensor.layout}, of shape {tuple(tensor.shape)}: a captured step takes "
            f"dense tensors of torch's own class and tracked ones. Convert it, or run the step eagerly."
        )
    if not tensor.is_leaf:
        raise CaptureError(
            f"{name}, a tensor of shape {tuple(tensor.shape)}, has a history, which leads out of the step: make it inside of the step, or "
            f"pass x.detach()."
        )


def _unique(reached: Reached, leaves: list[Any]) -> list[torch.Tensor]:
    """All input tensors, each once: what the step reaches, then arguments."""
    tensors = list(reached.tensors)
    places = reached.places
    seen = set()
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in places and id(leaf) not in seen:
            seen.add(id(leaf))
            tensors.append(leaf)
    return tensors


def _run(entry: Entry, tensors: list[torch.Tensor]) -> Any:
    captured = entry.captured
    mode = torch.is_grad_enabled()
    with DisableTorchFunctionSubclass():
        set_grad_enabled(False)
        try:
            values = entry.run(*[tensors[i] for i in captured.used])
            _fill(captured, tensors, values)
        finally:
            set_grad_enabled(mode)
        return captured.rebuild([_returned(leaf, tensors, values) for leaf in captured.returned])


def _fill(captured: Captured, tensors: list[torch.Tensor], values: Any) -> None:
    for position, at in captured.grads:
        tensor = tensors[position]
        if captured.looks_at_grad or _GRAD.__get__(tensor) is None:
            _GRAD.__set__(tensor, values[at])
        else:
            accumulate([(tensor, [values[at]])])
    for position in captured.cleared:
        _GRAD.__set__(tensors[position], None)


def _returned(leaf: Returned, tensors: list[torch.Tensor], values: Any) -> Any:
    if leaf.kind == "value":
        return leaf.at
    if leaf.kind == "input":
        return tensors[leaf.at]
    if leaf.kind == "grad":
        return _GRAD.__get__(tensors[leaf.at])
    value = values[leaf.at]
    if not leaf.tracked:
        return value
    node = RaisingNode("compiled_step", _ended, (), value.shape, value.dtype) if leaf.history else None
    return become_tracked(value, node)


def _ended() -> Exception:
    return SecondDerivativeError(
        "backward came to a result of a compiled step, whose history ended with the step: its gradients were taken inside. Call backward "
        "inside of the step, or use x.detach()."
    )
