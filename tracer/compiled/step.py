"""A compiled step: which of its graphs a call takes, and the report on them."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorGuards, tree_flatten, tree_leaves
from tracer.compiled.backends import Backend, check_backend, default_backend
from tracer.compiled.check import checked_call
from tracer.compiled.families import Family, key_without_sizes
from tracer.compiled.graphs import StepGraph, make_graph
from tracer.compiled.key import ASPECTS, THREAD, hooks_of, key_of_arguments, key_of_tensor, key_of_thread
from tracer.compiled.reached import Reached, differences
from tracer.compiled.report import CompiledStepReport
from tracer.errors import CaptureError
from tracer.tracked_tensor import Tensor

_TENSORS = frozenset({torch.Tensor, Tensor, torch.nn.Parameter})
#: So many graphs of one step are told of once.
MANY = 9
#: So many keys of calls lead to a graph at once; of others that symbolic sizes serve, the conditions are asked.
REMEMBERED = 2000
_ADVICE = {
    True: "Pass what changes as a tensor, and pad shapes to a few sizes",
    False: "Its graph is one for many sizes",
}


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
        self._roots: tuple[Any, ...] = ()
        self._guards: Any = None
        self._state = 0
        self._states: dict[Any, tuple[int, Reached]] = {}
        self._graphs: dict[Any, StepGraph] = {}
        self._families: dict[Any, Family] = {}
        self._made: list[StepGraph] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves: Sequence[Any]
        roots: tuple[Any, ...] = ()
        if not kwargs and _TENSORS.issuperset(map(type, args)):  # most calls: looking for nests in it would take 5 us
            leaves, spec = args, len(args)
        else:
            leaves, spec = tree_flatten((args, kwargs))
            roots = tuple([leaf for leaf in leaves if _leads_on(leaf)])
        with DisableTorchFunctionSubclass():
            reached = self._look_again(roots)
            tensors = _all_tensors(reached, leaves)
        key = self._state, key_of_arguments(leaves, spec, reached.places), key_of_thread()
        try:
            graph = self._graphs.get(key)
        except TypeError as error:
            raise CaptureError(
                f"an argument of a compiled step is no tensor and cannot be compared ({error}): a graph is made for each value of such "
                f"arguments. Pass tensors, numbers, strings, modules, in tuples, lists and dictionaries."
            ) from error
        if graph is not None and (graph.captured.looks_at_grad or graph.captured.looks_at_offset):
            graph = self._graphs.get((key, graph.looks(tensors)))
        if graph is not None:
            return graph(tensors)
        graph = self._graph_of_family(key, reached, tensors, leaves, args, kwargs)
        if graph.conditions is not None and len(self._graphs) > REMEMBERED:
            self._graphs = {known: other for known, other in self._graphs.items() if other.conditions is None}
        self._graphs[key] = self._graphs[key, graph.looks(tensors)] = graph
        return checked_call(graph, lambda: self._step(*args, **kwargs), tensors) if self._check else graph(tensors)

    def _graph_of_family(
        self, key: Any, reached: Reached, tensors: list[torch.Tensor], leaves: Sequence[Any], args: Any, kwargs: Any
    ) -> StepGraph:
        """A graph for a call of sizes not seen before: one of symbolic sizes, or a new one."""
        family = self._families.setdefault(key_without_sizes(key), Family(self._dynamic))
        with DisableTorchFunctionSubclass():
            graph = family.find(tensors)
        if graph is not None:
            return graph
        graph = self._make(reached, tensors, args, kwargs, family)
        with DisableTorchFunctionSubclass():
            self._note(graph, _named_key(reached, graph.names, leaves, key), family.broken(tensors))
            family.add(graph, tensors, len(reached.tensors))
        return graph

    def explain(self) -> CompiledStepReport:
        """The graphs made so far: their keys and times, how often each ran, and what differed when it was captured."""
        backend = self._backend if isinstance(self._backend, str) else default_backend()
        if callable(self._backend):
            backend = getattr(self._backend, "__name__", "a function")
        return CompiledStepReport(getattr(self._step, "__name__", "step"), backend, self._made)

    def _note(self, graph: StepGraph, key: list[tuple[str, Any]], broken: list[str]) -> None:
        """What the nearest graph before was made for tells why this one had to be."""
        graph.key = key
        differ = [differences(before.key, key) for before in self._made]
        graph.differed = (min(differ, key=len) if differ else []) + broken
        self._made.append(graph)
        if len(self._made) == MANY:
            warnings.warn(
                f"{getattr(self._step, '__name__', 'a step')} was captured {MANY} times; this time since it differed in "
                f"{'; '.join(graph.differed[:3]) or 'its gradients'}. {_ADVICE[graph.conditions is None]}; .explain() tells all of it.",
                UserWarning,
                stacklevel=4,
            )

    def graph_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
        """The graph of a call with these arguments, without running it."""
        leaves, _ = tree_flatten((args, kwargs))
        with DisableTorchFunctionSubclass():
            reached = self._look_again(tuple([leaf for leaf in leaves if _leads_on(leaf)]))
            tensors = _all_tensors(reached, leaves)
        made = self._make(reached, tensors, args, kwargs, Family(self._dynamic))
        if made.conditions is not None:
            made.captured.graph.meta["conditions"] = made.conditions.told
        return made.captured.graph

    def _look_again(self, roots: tuple[Any, ...]) -> Reached:
        """What the step reaches now, through ``roots`` among its arguments too; walked anew only where something is not what it was."""
        reached = self._reached
        same = reached is not None and len(roots) == len(self._roots) and all(map(is_, roots, self._roots))
        if reached is None or not (same and reached.unchanged() and self._guards.check(*reached.tensors)):
            reached = self._reached = Reached(self._step, self._modules, roots)
            self._roots = roots
            self._guards = TensorGuards(*reached.tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            tensors = [(*key_of_tensor(t), t.requires_grad, t.requires_grad and hooks_of(t)) for t in reached.tensors]
            key = tuple(reached.facts), tuple(tensors)
            self._state, _ = self._states.setdefault(key, (len(self._states), reached))
        return reached

    def _make(self, reached: Reached, tensors: list[torch.Tensor], args: Any, kwargs: Any, family: Family) -> StepGraph:
        given = _names_of_arguments(self._step, args, kwargs)
        names = [*reached.names, *(given.get(id(t), "an argument") for t in tensors[len(reached.tensors) :])]
        make = functools.partial(make_graph, lambda: self._step(*args, **kwargs), reached, tensors, names)
        with DisableTorchFunctionSubclass():
            dims = family.dims(tensors, len(reached.tensors))
        if not dims:
            return make(self._backend, {})
        try:
            return make(self._backend, dims)
        except Exception as error:
            # What is wrong with the step itself comes up again with fixed sizes.
            graph = make("replay" if self._dynamic else self._backend, {})
            family.fixed_since = (str(error) or type(error).__name__).partition("\n")[0].rstrip(".")
            if not self._dynamic:
                graph.fixed_since = family.fixed_since
                return graph
            raise CaptureError(
                f"dynamic=True: with fixed sizes this step can be captured, with symbolic ones it cannot: {family.fixed_since}. Leave "
                f"dynamic=False: each shape gets a graph of its own."
            ) from error


def _leads_on(leaf: Any) -> bool:
    """Whether an argument is walked as what a step closes over is: a module, or a function."""
    return isinstance(leaf, torch.nn.Module | types.FunctionType | types.MethodType | functools.partial)


def _named_key(reached: Reached, names: list[str], leaves: Sequence[Any], key: Any) -> list[tuple[str, Any]]:
    """All that a graph was made for, by name."""
    _, (_, *arguments), thread = key
    named = [*reached.facts, *zip(THREAD, thread, strict=True)]
    given = {id(t): name for t, name in zip(_all_tensors(reached, leaves), names, strict=True)}
    for position, (leaf, part) in enumerate(zip(leaves, arguments, strict=True)):
        if isinstance(leaf, torch.Tensor):
            name = given.get(id(leaf), f"argument {position}")
            named += [(f"{aspect} of {name}", value) for aspect, value in zip(ASPECTS, part, strict=True)]
        else:
            named.append((f"argument {position}", part[1]))
    with DisableTorchFunctionSubclass():
        for name, tensor in zip(reached.names, reached.tensors, strict=True):
            aspects = *key_of_tensor(tensor), tensor.requires_grad
            named += [(f"{aspect} of {name}", value) for aspect, value in zip(ASPECTS, aspects, strict=False)]
    return named


def _all_tensors(reached: Reached, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """All input tensors, each once: what the step reaches, then arguments."""
    tensors = list(reached.tensors)
    places = reached.places
    seen = set()
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in places and id(leaf) not in seen:
            seen.add(id(leaf))
            tensors.append(leaf)
    return tensors


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
