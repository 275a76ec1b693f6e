"""A compiled step: which of its graphs a call takes, and the report on them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorGuards, tree_flatten, tree_leaves
from tracer.compiled.backends import Backend, check_backend
from tracer.compiled.graphs import StepGraph, make_graph
from tracer.compiled.key import key_of_arguments, key_of_tensor, key_of_thread
from tracer.compiled.reached import Reached

_GRAD: Any = torch.Tensor.grad


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
        self._graphs: dict[Any, StepGraph] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        with DisableTorchFunctionSubclass():
            reached = self._look_again()
            tensors = _all_tensors(reached, leaves)
        key = self._state, key_of_arguments(leaves, spec, reached.places), key_of_thread()
        graph = self._graphs.get(key)
        if graph is not None and graph.captured.looks_at_grad:
            graph = self._graphs.get((key, _key_of_grads(tensors)))
        if graph is None:
            graph = self._make(reached, tensors, args, kwargs)
            self._graphs[key] = graph
            if graph.captured.looks_at_grad:
                self._graphs[key, _key_of_grads(tensors)] = graph
        return graph(tensors)

    def graph_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
        """The graph of a call with these arguments, without running it."""
        leaves, _ = tree_flatten((args, kwargs))
        with DisableTorchFunctionSubclass():
            reached = self._look_again()
            tensors = _all_tensors(reached, leaves)
        return self._make(reached, tensors, args, kwargs).captured.graph

    def _look_again(self) -> Reached:
        """What the step reaches now; walked anew only where something is no longer what it was."""
        reached = self._reached
        if reached is None or not (reached.unchanged() and self._guards.check(*reached.tensors)):
            reached = self._reached = Reached(self._step, self._modules)
            self._guards = TensorGuards(*reached.tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            key = tuple(reached.facts), tuple([(*key_of_tensor(t), t.requires_grad) for t in reached.tensors])
            self._state, _ = self._states.setdefault(key, (len(self._states), reached))
        return reached

    def _make(self, reached: Reached, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> StepGraph:
        given = _names_of_arguments(self._step, args, kwargs)
        names = [*reached.names, *(given.get(id(t), "an argument") for t in tensors[len(reached.tensors) :])]
        return make_graph(lambda: self._step(*args, **kwargs), reached, tensors, names, self._backend)


def _all_tensors(reached: Reached, leaves: list[Any]) -> list[torch.Tensor]:
    """All input tensors, each once: what the step reaches, then arguments."""
    tensors = list(reached.tensors)
    places = reached.places
    seen = set()
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in places and id(leaf) not in seen:
            seen.add(id(leaf))
            tensors.append(leaf)
    return tensors


def _key_of_grads(tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """What there is in ``.grad`` of each, where the step looks at it."""
    with DisableTorchFunctionSubclass():
        grads = [_GRAD.__get__(tensor) for tensor in tensors]
        return tuple([None if grad is None else key_of_tensor(grad) for grad in grads])


def _names_of_arguments(step: Callable[..., Any], args: Any, kwargs: Any) -> dict[int, str]:
    """By id, what the step calls each tensor among its arguments."""
    try:
        bound = inspect.signature(step).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    found: dict[int, str] = {}
    for name, value in bound.items():
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), name)
            continue
        for position, leaf in enumerate(tree_leaves(value)):
            found.setdefault(id(leaf), f"{name}[{position}]")
    return found
