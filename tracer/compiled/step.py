"""A compiled step: which of its graphs a call takes, and the report on them."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, tree_flatten, tree_leaves
from tracer.compiled.aside import in_checkpoint, outside_of_checkpoints, steps_aside
from tracer.compiled.backends import Backend, check_backend, default_backend
from tracer.compiled.check import checked_call
from tracer.compiled.families import Family, key_without_sizes
from tracer.compiled.graphs import MetMore, make_graph
from tracer.compiled.key import ASPECTS, is_plain, key_of_arguments, key_of_tensor, key_of_thread, named_thread
from tracer.compiled.looks import Look
from tracer.compiled.nests import ids_in, kept_as_they_were, types_of_keys
from tracer.compiled.observed import Seen
from tracer.compiled.optimizers import FullStep, Optimizers, StateToCome, optimizers_of
from tracer.compiled.python_writes import PythonWrites
from tracer.compiled.reached import Reached
from tracer.compiled.report import CompiledStepReport
from tracer.compiled.telling import NESTING, nearest
from tracer.compiled.turns import making, runs
from tracer.errors import CaptureError, GradientArgumentError
from tracer.tracked_tensor import Tensor

_TENSORS = frozenset({torch.Tensor, Tensor, torch.nn.Parameter})
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
#: So many graphs of one step are told of once.
MANY = 9
#: So many are kept, and so many ways to look at the step; a capture is tried so often.
KEPT = 64
LOOKS = 8
ATTEMPTS = 6
#: So many keys of calls lead to a graph at once; of others that symbolic sizes serve, the conditions are asked.
REMEMBERED = 2000
_ADVICE = {
    True: "Pass what changes as a tensor, and pad shapes to a few sizes",
    False: "Its graph is one for many sizes",
}


def check_step(step: Any) -> None:
    """Raise ``GradientArgumentError`` for what cannot be called."""
    if not callable(step):
        raise GradientArgumentError(
            f"tracer.compile got a {type(step).__qualname__}, which cannot be called: it takes a function, a bound method, another "
            f"callable or a module. Of a class method, compile the function: @classmethod above @tracer.compile."
        )


class CompiledStep:
    """What ``tracer.compile`` returns: called as the step itself."""

    #: Whether hooks on leaves run in the graph.
    leaf_hooks = True

    def __init__(
        self,
        step: Callable[..., Any],
        modules: Iterable[torch.nn.Module] | None,
        backend: Backend,
        dynamic: bool,
        check: bool,
        fullstep: FullStep = False,
    ) -> None:
        check_backend(backend)
        check_step(step)
        functools.update_wrapper(self, step)
        self._step = step
        #: What names the arguments.
        self._signature = step
        #: Those that the step is said to reach.
        self.modules = [] if modules is None else list(modules)
        self._backend = backend
        self._dynamic = dynamic
        self._check = check
        #: The one that served last comes first.
        one_by_one = (default_backend() if backend is None else backend) != "replay"
        self._fullstep = fullstep
        self._optimizers = Optimizers(optimizers_of(fullstep), one_by_one) if fullstep is not False else None
        self._looks = [Look(step, self.modules, Seen(), self.leaf_hooks, self._optimizers)]
        self._graphs: dict[Any, Any] = {}
        self._families: dict[Any, Family] = {}
        self._made: list[Any] = []
        self._let_go = 0
        self._told: set[str] = set()
        #: A look is at one state at a time.
        self._looking = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if steps_aside():
            return self._step(*args, **kwargs)
        if in_checkpoint():
            with outside_of_checkpoints():
                return self(*args, **kwargs)
        with runs:
            found = self.known(args, kwargs)
            if found is not None:
                graph, tensors = found
                return graph(tensors)
        try:
            graph, tensors, is_new = self.find(args, kwargs)
        except StateToCome:  # torch's own first step makes it
            return self._step(*args, **kwargs)
        with runs:
            if is_new and self._check:
                return checked_call(graph, lambda: self._step(*args, **kwargs), tensors)
            return graph(tensors)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: bound to the object, as functions are."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """A copy has graphs of its own. Pickled it is the name it has in its module, or the step with its options."""
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        name = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        options = self.modules, self._backend, self._dynamic, self._check, self._fullstep
        return type(self), (self._step, *options)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor], bool]:
        """The graph that a call takes, the tensors that it runs on, and whether it was captured for this call."""
        with making():
            found = self.known(args, kwargs)
            if found is not None:
                return *found, False
            return *self._new(*_parts(args, kwargs), args, kwargs), True

    def known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]] | None:
        """The graph that was captured for calls like this one, if there is one, and the tensors that it runs on here."""
        leaves, spec, roots = _parts(args, kwargs)
        thread = key_of_thread()
        with self._looking:
            for look in self._looks:
                with DisableTorchFunctionSubclass():
                    reached = look.at(roots)
                    tensors = _all_tensors(reached, leaves)
                    for known in reached.stepping or ():
                        known.fill()
                key = look.state, key_of_arguments(leaves, spec, reached.places), thread
                graph = self._graphs.get(key)
                if graph is not None and (graph.captured.looks_at_grad or graph.captured.looks_at_offset):
                    graph = self._graphs.get((key, graph.captured.looks(tensors)))
                if graph is not None and _can_serve(graph):
                    self._serves(look)
                    return _noted(graph, reached), tensors
        return None

    def _serves(self, look: Look) -> None:
        if look is not self._looks[0]:
            self._looks.remove(look)
            self._looks.insert(0, look)

    def _new(
        self,
        leaves: Sequence[Any],
        spec: Any,
        roots: tuple[Any, ...],
        args: Any,
        kwargs: Any,
        earlier: PythonWrites | None = None,
    ) -> tuple[Any, list[torch.Tensor]]:
        """A graph for a call that is served by none yet, and the tensors that it runs on.

        A capture may meet more than the walk before it had found. Then the step is walked with that, and captured again.
        ``earlier``: what the step has left in Python's objects, and finds there now; it must leave nothing more.
        """
        if len(self._made) >= KEPT:
            self._forget()
        look = self._looks[0]
        for attempt in range(ATTEMPTS):
            with self._looking, DisableTorchFunctionSubclass():
                reached = look.at(roots)
                state = look.state
                tensors = _all_tensors(reached, leaves)
            if any(stepping.lacks_state() for stepping in reached.stepping or ()):
                raise StateToCome
            key = state, key_of_arguments(leaves, spec, reached.places), key_of_thread()
            family = self._families.setdefault(key_without_sizes(key), Family(self._dynamic))
            with DisableTorchFunctionSubclass():
                known = family.find(tensors)
            if known is not None and not _can_serve(known):
                known = None
            try:
                with kept_as_they_were((args, kwargs)):
                    graph = known or self._make(reached, tensors, args, kwargs, family)
            except MetMore as met:
                seen = met.seen | look.seen if attempt else met.seen
                look = Look(self._step, self.modules, seen, self.leaf_hooks, self._optimizers)
                continue
            writes = graph.captured.writes
            if earlier is not None:
                earlier.check_next(writes)
            if reached.extended is not None:
                with self._looking, DisableTorchFunctionSubclass():
                    look.extend(reached)
                    key = look.state, *key[1:]
                self._families[key_without_sizes(key)] = family
            if look not in self._looks:
                self._looks = [look, *self._looks[: LOOKS - 1]]
            if known is None:
                self._tell(graph.captured.observer.told)
                with DisableTorchFunctionSubclass():
                    arguments = names_of_leaves(self._signature, args, kwargs)
                    named = _named_key(reached.extended or reached, arguments, leaves, key)
                    self._note(graph, named, family.broken(tensors))
                if writes is not None:
                    self._refuse_more_writes(graph, writes, leaves, spec, roots, args, kwargs)
                with DisableTorchFunctionSubclass():
                    family.add(graph, tensors, len(reached.tensors))
            if graph.conditions is not None and len(self._graphs) > REMEMBERED:
                self._graphs = {known: other for known, other in self._graphs.items() if other.conditions is None}
            self._graphs[key] = self._graphs[key, graph.captured.looks(tensors)] = graph
            return _noted(graph, reached), tensors
        raise CaptureError(
            f"each of {ATTEMPTS} captures of the step has met other objects than the one before: it makes new ones that stay. Make them "
            f"outside of the step."
        )

    def _refuse_more_writes(
        self,
        graph: Any,
        writes: PythonWrites,
        leaves: Sequence[Any],
        spec: Any,
        roots: tuple[Any, ...],
        args: Any,
        kwargs: Any,
    ) -> None:
        """Capture the step as it finds what ``graph`` leaves behind; raise ``CaptureError`` where it writes something else then."""
        writes.do()
        try:
            self._new(leaves, spec, roots, args, kwargs, writes)
        except BaseException as error:
            self._made = [other for other in self._made if other is not graph]
            # What it has taken away is not there twice.
            if isinstance(error, Exception) and not isinstance(error, CaptureError):
                raise writes.refusal() from error
            raise
        finally:
            writes.undo()

    def _forget(self) -> None:
        """Let go of all graphs: where each call makes one, they would fill the memory."""
        self._let_go += len(self._made)
        self._graphs.clear()
        self._families.clear()
        self._made.clear()
        for look in self._looks:
            look.forget()

    def _checkable(self, graph: Any) -> Any:
        if self._check and graph.captured.around.prepare:
            raise CaptureError(
                "check=True runs a step twice, and this one exchanges gradients with other processes (DistributedDataParallel), which may "
                "not make a graph at the same time. Check the step of the module alone (wrapped.module)."
            )
        return graph

    def explain(self) -> CompiledStepReport:
        """The graphs that there are: their keys and times, how often each ran, what differed when it was captured; how many were let go."""
        backend = self._backend if isinstance(self._backend, str) else default_backend()
        if callable(self._backend):
            backend = getattr(self._backend, "__name__", "a function")
        return CompiledStepReport(getattr(self, "__name__", "step"), backend, self._made, self._let_go)

    def _note(self, graph: Any, key: list[tuple[str, Any]], broken: list[str]) -> None:
        """What the nearest graph before was made for tells why this one had to be."""
        graph.key = key
        graph.differed = nearest([before.key for before in self._made], key) + broken
        self._made.append(graph)
        if len(self._made) == MANY:
            warnings.warn(
                f"{getattr(self, '__name__', 'a step')} was captured {MANY} times; this time since it differed in "
                f"{'; '.join(graph.differed[:3]) or 'its gradients'}. {_ADVICE[graph.conditions is None]}; .explain() tells all of it.",
                UserWarning,
                stacklevel=4,
            )

    def _tell(self, told: Mapping[str, str]) -> None:
        """Say once of each thing that it is done while a graph is captured, and not when it runs."""
        for what, where in told.items():
            if what not in self._told:
                self._told.add(what)
                warnings.warn(
                    f"{getattr(self, '__name__', 'a step')} {what}, {where}: that happens while it is captured, and not at each call, "
                    f"which runs a graph. Do it outside of the step, with what the step returns.",
                    UserWarning,
                    stacklevel=5,
                )

    def graph_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
        """The graph of a call with these arguments, without running it."""
        made, _, _ = self.find(args, kwargs)
        graph: torch.fx.GraphModule = made.captured.graph
        graph.meta["results"] = made.captured.results([*made.names, *["a tensor from elsewhere"] * len(made.strangers)])
        if made.conditions is not None:
            graph.meta["conditions"] = made.conditions.told
        type(graph).__name__ = getattr(self, "__name__", "step")  # what is printed is a class; each graph has its own
        return graph

    def _names(self, reached: Reached, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> list[str]:
        """A name for each of the tensors of a call whose arguments these are."""
        reached.arguments = ids_in((args, kwargs))
        leaves = tree_leaves((args, kwargs))
        given = dict[int, str]()
        for leaf, name in zip(leaves, names_of_leaves(self._signature, args, kwargs), strict=True):
            given.setdefault(id(leaf), name)
        return [*reached.names, *(given.get(id(t), "an argument") for t in tensors[len(reached.tensors) :])]

    def _make(self, reached: Reached, tensors: list[torch.Tensor], args: Any, kwargs: Any, family: Family) -> Any:
        names = self._names(reached, tensors, args, kwargs)
        make = functools.partial(make_graph, lambda: self._step(*args, **kwargs), reached, tensors, names)
        with DisableTorchFunctionSubclass():
            dims = family.dims(tensors, len(reached.tensors))
        if not dims:
            return self._checkable(make(self._backend, {}))
        try:
            return self._checkable(make(self._backend, dims))
        except (MetMore, StateToCome):
            raise
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


def _noted(graph: Any, reached: Reached) -> Any:
    """The graph, which is about to run; optimisers that step in it are told."""
    if reached.stepping is not None:
        for at in graph.captured.around.stepped:
            reached.stepping[at].note_step()
    return graph


def _can_serve(graph: Any) -> bool:
    """Whether what a graph leaves in Python's objects can be left there now."""
    writes = graph.captured.writes
    return writes is None or writes.applies


def _parts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any, tuple[Any, ...]]:
    """Of a call: the leaves of its arguments, how these are nested, and those that have to be walked."""
    if not kwargs and _TENSORS.issuperset(map(type, args)):  # most calls: looking for nests in it would take 5 us
        return args, len(args), ()
    leaves, spec = tree_flatten((args, kwargs))
    roots = tuple([leaf for leaf in leaves if not (isinstance(leaf, torch.Tensor) or is_plain(leaf))])
    return leaves, (spec, types_of_keys((args, kwargs))), roots


def _named_key(reached: Reached, names: list[str], leaves: Sequence[Any], key: Any) -> list[tuple[str, Any]]:
    """All that a graph was made for, by name. ``names`` are those of the ``leaves`` of the arguments."""
    _, (spec, *arguments), thread = key
    named = [*reached.facts, (NESTING, spec), *named_thread(thread)]
    for name, leaf, part in zip(names, leaves, arguments, strict=True):
        if isinstance(leaf, torch.Tensor):
            named += [(f"{aspect} of {name}", value) for aspect, value in zip(ASPECTS, part, strict=True)]
        else:
            named.append((name, part))
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


def names_of_leaves(step: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """What the step calls each leaf of its arguments; those in a nest are numbered."""
    try:
        parameters = [*inspect.signature(step).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    names = [parameter.name for parameter in parameters if parameter.kind in _BY_POSITION]
    rest = next(
        (parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL), None
    )
    for position in range(len(names), len(args)):
        names.append(f"argument {position}" if rest is None else f"{rest}[{position - len(names)}]")
    found: list[str] = []
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        leaves = tree_leaves(value)
        alone = len(leaves) == 1 and leaves[0] is value
        found += [name] if alone else [f"{name}[{position}]" for position in range(len(leaves))]
    return found
