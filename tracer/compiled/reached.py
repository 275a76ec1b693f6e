"""What a step reaches beside its arguments: modules, tensors, and the plain values that its code reads, each under a name.

Tracing fixes plain values: a number in a closure, a global, an attribute of ``self`` or of a module. So they belong to what a graph was
made for, and each call asks whether any has been put in another's place since (``guards``).
"""

from __future__ import annotations

import collections.abc
import contextvars
import enum
import functools
import gc
import io
import sys
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ops_registry.torch_private import TensorBase, is_functional
from tracer.compiled.caches import forget_made
from tracer.compiled.code_names import names_in
from tracer.compiled.followed import BYTES, DESCRIPTORS, GLOBAL_HOOKS, MEMORY, SIMPLE, is_followed, read_by_torch, slots
from tracer.compiled.generators import put_state, state_of
from tracer.compiled.guards import Guards
from tracer.compiled.observed import Seen
from tracer.compiled.optimizers import Hyperparameters, Optimizers, visit_state
from tracer.compiled.telling import last_name
from tracer.compiled.whose import CLOSED, is_closed, is_engines, is_library, is_ours
from tracer.node import Leaf
from tracer.tracked_tensor import Tensor, users_attributes

_REQUIRES_GRAD: Any = TensorBase.requires_grad


#: How the names of what an argument leads to begin.
ARGUMENT = "argument "


class Reached:
    """What a step reached when it was walked. ``unchanged()`` says whether a walk would find the same again."""

    def __init__(
        self,
        step: Callable[..., Any],
        modules: Iterable[torch.nn.Module] = (),
        roots: Iterable[Any] = (),
        seen: Seen | None = None,
        leaf_hooks: bool = True,
        optimizers: Optimizers | None = None,
    ) -> None:
        """``leaf_hooks``: hooks on leaves run in what is captured, and are walked too. ``optimizers``: may step inside."""
        self.seen = seen or Seen()
        self._walked = step, tuple(modules), tuple(roots), self.seen, leaf_hooks, optimizers
        #: The same walk with what its capture has met, where that was more.
        self.extended: Reached | None = None
        #: The containers and tensors among the arguments of the call, by id: the next call brings others.
        self.arguments: frozenset[int] = frozenset()
        #: Every tensor once, ties kept, in the order found, and a name for each.
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        #: Those that a step has made that is being captured, and has left somewhere.
        self.made: list[torch.Tensor] = []
        #: What keeps results of functions in C's memory.
        self._caches: list[Any] = []
        #: Those that stand in a module, by id.
        self.in_modules: set[int] = set()
        #: What is no tensor and holds values that nobody is told of when they change: its name, what it is.
        self.opaque: list[tuple[str, str]] = []
        self.modules: list[torch.nn.Module] = []
        #: The optimisers that may step inside; None where none may.
        self.stepping: list[Hyperparameters] | None = None if optimizers is None else []
        #: Each plain value by its name; two walks that find the same facts have found the same step.
        self.facts: list[tuple[str, Any]] = []
        self.guards = Guards()
        self.unchanged = self.guards.unchanged
        self._visited: dict[int, tuple[int, Any]] = {}
        #: Objects whose ids stand among the facts.
        self.kept: list[Any] = []
        #: Names of attributes that code reads, and names of its variables.
        self._read: set[str] = {"__call__"}
        self._variables: set[str] = {"argument"}
        self._objects: list[tuple[str, Any, dict[str, Any], set[str]]] = []
        self._classes: dict[type, set[str]] = {}
        self._iterators: list[str] = []
        self._files: list[str] = []
        self._generators: list[tuple[str, Any, Any]] = []
        self._walk()
        self.places = {id(tensor): position for position, tensor in enumerate(self.tensors)}
        self.guards.close()

    def _walk(self) -> None:
        step, given, arguments, seen, _, optimizers = self._walked
        for held in GLOBAL_HOOKS:
            self._visit(held, "torch's hooks on all modules")
        for module in given:
            self._visit(module, type(module).__name__)
        for argument in arguments:
            name = f"{ARGUMENT}{getattr(argument, '__name__', type(argument).__name__)}"
            self._visit(argument, name)
            if seen.whole_arguments and isinstance(getattr(argument, "__dict__", None), dict):
                self._visit(vars(argument), f"all of {name}")
        self._visit(step, getattr(step, "__name__", "step"))
        for optimizer in () if optimizers is None else optimizers.given:
            self._visit(optimizer, type(optimizer).__name__)
        for kind in (Tensor, torch.Tensor):
            self._visit_class(kind)
        for code, known, light in seen.codes.values():
            if light:
                self._visit_patches(code, known)
            else:
                self._read.add(code.co_name)
                self._visit_code_names(code, known)
        for function in seen.functions.values():
            self._visit(function, function.__name__)
        for name, value, whole in seen.objects.values():
            self._visit(value, name)
            if whole and isinstance(getattr(value, "__dict__", None), dict):
                self._visit(vars(value), f"all of {name}")
        self._visit_objects()
        for met in self.stepping or ():  # modules come before, so that their names stand
            met.refresh()
            self.facts += met.facts()
            visit_state(met, self.guards, self._visit)
        named = self._read | self._variables
        self.opaque += [(name, "an iterator") for name in self._iterators if last_name(name) in named]
        self.opaque += [(name, "a file") for name in self._files if last_name(name) in named]

    @property
    def size(self) -> tuple[int, ...]:
        """How much was found."""
        return *self.guards.size, len(self.tensors)

    def extend(self, seen: Seen) -> Seen | None:
        """Walk again with what a capture has met. Returns it if that leads to more than the first walk found: to be captured again."""
        self._leave_out_arguments(seen)
        if seen <= self.seen:
            return None
        seen = seen | self.seen
        step, modules, roots, _, leaf_hooks, optimizers = self._walked
        again = Reached(step, modules, roots, seen, leaf_hooks, optimizers)
        if again.size != self.size:
            return seen
        self.extended = again
        return None

    def _leave_out_arguments(self, seen: Seen) -> None:
        """What the walk finds by itself is not kept: an argument is another object at the next call."""
        arguments = self._walked[2]
        given = set(map(id, arguments))
        for key, (_, _, whole) in list(seen.objects.items()):
            if key in self.arguments:
                del seen.objects[key]
            elif key in self._visited and (not whole or key in given):
                seen.whole_arguments |= whole
                del seen.objects[key]

    @property
    def given(self) -> frozenset[int]:
        """The ids of the arguments that are objects, of their namespaces, and of the containers and tensors among arguments."""
        arguments = self._walked[2]
        return self.arguments | {id(part) for given in arguments for part in (given, getattr(given, "__dict__", given))}

    def again(self) -> Reached:
        """The same walk over all as it is now."""
        return Reached(*self._walked)

    def draws(self) -> str:
        """The name of a random generator of Python's or NumPy's that has drawn since the walk; empty where none has."""
        return next((name for name, value, state in self._generators if repr(state_of(value)) != repr(state)), "")

    def put_back(self) -> None:
        """Put everything back to what it was at the walk, in place."""
        if not self.unchanged():
            self.guards.put_back()
        for cache in self._caches:
            forget_made(cache)
        for _, value, state in self._generators:
            put_state(value, state)

    # ------------------------------------------------------------------ the walk
    def _visit(self, value: Any, name: str, module: bool = False) -> None:
        kind = type(value)
        if kind in SIMPLE or isinstance(value, enum.Enum):
            self.facts.append((name, (kind, repr(value) if kind in (float, complex, slice) else value)))
            return
        known = self._visited.get(id(value))
        if known is not None:
            self.facts.append((name, ("same", known[0])))
            if module and isinstance(value, torch.Tensor):
                self.in_modules.add(id(value))
            return
        self._visited[id(value)] = len(self._visited), value
        if isinstance(value, torch.Tensor):
            self._visit_tensor(value, name, module)
        elif isinstance(value, torch.nn.Module):
            self._visit_module(value, name)
        elif not (
            self._visit_optimizer(value, name)
            or self._visit_container(value, name, module)
            or self._visit_code(value, name)
            or self._visit_memory(value, name, module)
        ):
            self._visit_object(value, name)

    def _visit_container(self, value: Any, name: str, module: bool) -> bool:
        """Dictionaries, lists, tuples, sets, and their like. Whether it was one."""
        kind = type(value)
        if isinstance(value, types.MappingProxyType):
            value = next((held for held in gc.get_referents(value) if isinstance(held, dict)), None)
        if isinstance(value, dict):
            keys = tuple((type(k), k) if type(k) in SIMPLE else id(k) for k in value)
            self.facts.append((name, (kind.__name__, keys)))
            self.kept += value
            self.guards.whole(value)
            for key, item in list(value.items()):
                self._visit(item, f"{name}[{key!r}]", module)
        elif isinstance(value, UserDict | UserList | ChainMap):
            self.facts.append((name, kind.__name__))
            held = "maps" if isinstance(value, ChainMap) else "data"
            self.guards.names(vars(value), (held,))
            self._visit(vars(value)[held], name, module)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            self.facts.append((name, (kind.__name__, len(value))))
            if not isinstance(value, tuple | frozenset):
                self.guards.items(value)
            for position, item in enumerate(list(value)):
                self._visit(item, f"{name}[{position}]", module)
        else:
            return False
        if kind.__module__ not in ("builtins", "collections"):
            self._note_object(value, name)
        return True

    def _visit_code(self, value: Any, name: str) -> bool:
        """Functions, bound methods, partials. Whether it was one."""
        if isinstance(value, functools.partial):
            self._visit(value.func, name)
            self._visit(value.args, f"{name}.args")
            self._visit(value.keywords, f"{name}.keywords")
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, "self")
            self._visit(value.__func__, name)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, name)
        elif isinstance(value, functools._lru_cache_wrapper | staticmethod):
            if not isinstance(value, staticmethod):
                self._caches.append(value)
            self._visit(value.__wrapped__, name)
        elif is_closed(type(value)) and "__wrapped__" in getattr(value, "__dict__", ()):  # another compiled step
            self._visit(value.__wrapped__, name)
            self._visit(getattr(value, "modules", ()), f"{name}'s modules")
        else:
            return False
        return True

    def _visit_function(self, function: types.FunctionType, name: str) -> None:
        code = function.__code__
        self.facts.append((name, ("function", code)))
        if id(code) not in self.seen.codes and (is_closed(function) or is_library(function.__module__)):
            # torch.no_grad, functools.singledispatch around a function of the user's.
            if "__wrapped__" in vars(function):
                self._visit(vars(function)["__wrapped__"], name)
            return
        self.guards.function(function)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._visit(cell.cell_contents, variable)
            except ValueError:  # not assigned yet
                continue
            self.guards.cell(cell)
        self._visit_code_names(code, function.__globals__)
        for default in (function.__defaults__, function.__kwdefaults__):
            if default:
                self._visit(default, f"{name}'s defaults")
        if not (is_closed(function) or is_library(function.__module__)):
            self._objects.append((name, function, vars(function), set()))

    def _visit_code_names(self, code: types.CodeType, known: dict[str, Any]) -> None:
        """What a piece of code names among its globals; the names of attributes are noted."""
        read = names_in(code)
        self._read |= read.attributes
        self._variables.update(read.names, code.co_varnames, code.co_freevars)
        found = tuple(sorted((read.names | read.attributes) & known.keys()))
        self.guards.names(known, found, read.names)
        for variable in found:
            self._visit(known[variable], variable)
        built_in = known.get("__builtins__", {})
        built_in = vars(built_in) if isinstance(built_in, types.ModuleType) else built_in
        for variable in sorted((read.names - known.keys()) & built_in.keys()):
            self._note_identity(built_in[variable], variable)
            self.guards.names(built_in, (variable,))
        for imported in sorted(read.imports):
            if imported in sys.modules:
                self._visit(sys.modules[imported], imported)

    def _visit_patches(self, code: types.CodeType, known: dict[str, Any]) -> None:
        """What the code of torch's layers names: functions that somebody may put others in the place of."""
        read = names_in(code)
        for variable in sorted(read.names & known.keys()):
            self._visit_patch(known, variable, variable)
            value = known[variable]
            if isinstance(value, types.ModuleType):
                for attribute in sorted(read.attributes & vars(value).keys()):
                    self._visit_patch(vars(value), attribute, f"{variable}.{attribute}")

    def _visit_patch(self, held: dict[str, Any], variable: str, name: str) -> None:
        self.guards.names(held, (variable,))
        self._note_identity(held[variable], name)

    def _note_identity(self, value: Any, name: str) -> None:
        self.facts.append((name, ("object", id(value))))
        self.kept.append(value)

    def _visit_tensor(self, tensor: torch.Tensor, name: str, module: bool) -> None:
        if is_functional(tensor):
            self.facts.append((name, ("tensor", "of this step")))
            self.made.append(tensor)
            return
        self.facts.append((name, ("tensor", len(self.tensors))))
        self.tensors.append(tensor)
        self.names.append(name)
        if module:
            self.in_modules.add(id(tensor))
        for attribute, value in users_attributes(tensor).items():
            self.guards.names(tensor.__dict__, (attribute,))
            self._visit(value, f"{name}.{attribute}")
        if type(tensor) is Tensor:
            self.guards.name(tensor.__dict__, "_node")
        else:
            self.guards.length(tensor.__dict__)
            if _REQUIRES_GRAD.__get__(tensor) and tensor.is_leaf:
                self.guards.leaf(tensor)
            return
        node = tensor._node
        if isinstance(node, Leaf) and self._walked[4]:
            self.guards.node(node)
            if node.extras is not None:
                self._visit(node.extras.hooks, f"the hooks of {name}")
                self._visit(node.extras.accumulate_hooks, f"the hooks on .grad of {name}")

    def _visit_module(self, module: torch.nn.Module, name: str) -> None:
        self.modules.append(module)
        self.facts.append((name, ("module", type(module))))
        self.guards.kind(module)
        state = vars(module)
        beside = getattr(type(module), "beside_graphs", None)
        if beside is None:
            self.guards.whole(state)
        else:  # a wrapper, which has work of its own to do around a graph
            state = {attribute: value for attribute, value in state.items() if attribute not in beside}
            self.guards.names(vars(module), state)
            self._note_identity(module, name)
        for kind in ("_parameters", "_buffers", "_modules"):
            held: dict[str, Any] = state[kind]
            self.guards.whole(held)
            self.facts.append((f"{name}.{kind}", tuple(held)))
            for part, value in held.items():
                self._visit(value, f"{name}.{part}", module=True)
        for attribute, value in state.items():
            if attribute not in ("_parameters", "_buffers", "_modules"):
                self._visit(value, f"{name}.{attribute}", module=True)
        self._visit_class(type(module))

    def _visit_optimizer(self, value: Any, name: str) -> bool:
        """An optimiser that may step inside. Whether it was one."""
        optimizers = self._walked[5]
        if not isinstance(value, torch.optim.Optimizer) or self.stepping is None or optimizers is None:
            return False
        self.stepping.append(optimizers.meet(value, name))
        self.facts.append((name, ("optimizer", type(value))))
        self.guards.kind(value)
        return True

    def _visit_class(self, kind: type) -> None:
        """A class whose attributes may be read: those named in code, and ``forward``."""
        for part in kind.__mro__:
            if part is not object and part not in self._classes:
                self._classes[part] = set()

    def _visit_memory(self, value: Any, name: str, module: bool) -> bool:
        """What holds its values beyond Python's objects, or draws them one by one. Whether it was such."""
        kind = type(value)
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            if module and value.nbytes <= BYTES:
                self._visit_answer(value.tobytes, name)
            else:
                self.opaque.append((name, "a NumPy array"))
        elif isinstance(value, MEMORY):
            if memoryview(value).nbytes <= BYTES:
                self._visit_answer(lambda: bytes(value), name)
            else:
                self.opaque.append((name, f"a {kind.__name__}"))
        elif isinstance(value, contextvars.ContextVar):
            self.guards.answer(lambda: id(value.get(None)))
            self._visit(value.get(None), name)
        elif isinstance(value, weakref.ref):
            self.guards.answer(lambda: id(value()))
            self._visit(value(), name)
        elif isinstance(value, io.IOBase):
            self.facts.append((name, ("object", id(value))))
            if value not in (sys.stdout, sys.stderr):
                self._files.append(name)
        elif isinstance(value, collections.abc.Iterator):
            self._note_identity(value, name)
            self._iterators.append(name)
        elif state_of(value) is not None:
            self._note_identity(value, name)
            self._generators.append((name, value, state_of(value)))
        else:
            return False
        return True

    def _visit_answer(self, ask: Callable[[], Any], name: str) -> None:
        self.facts.append((name, ("memory", ask())))
        self.guards.answer(ask)

    def _visit_object(self, value: Any, name: str) -> None:
        kind = type(value)
        if (
            isinstance(value, types.ModuleType | type)
            or is_engines(kind)
            or not (hasattr(value, "__dict__") or slots(value))
        ):
            self._note_identity(value, name)
        else:
            self.facts.append((name, ("object", kind)))
            self.guards.kind(value)
        if isinstance(value, type):
            if not is_closed(value):
                self._visit_class(value)
        else:
            self._note_object(value, name)

    def _note_object(self, value: Any, name: str) -> None:
        """An object whose attributes may be named in code."""
        kind = type(value)
        if isinstance(value, types.ModuleType):
            self._objects.append((name, value, vars(value), set()))
        elif not is_ours(kind):
            held = getattr(value, "__dict__", None)
            self._objects.append((name, value, held if isinstance(held, dict) else {}, set()))
            for attribute in read_by_torch(value):
                self.guards.names(vars(value), (attribute,))
                self._visit(vars(value)[attribute], f"{name}.{attribute}")
            if not is_closed(kind):
                self._visit_class(kind)

    def _visit_objects(self) -> None:
        """Of objects, those attributes that are named in code that was reached; which may lead to more code, and more objects."""
        size = (-1, -1)
        while size != (len(self._read), len(self._visited)):
            size = len(self._read), len(self._visited)
            for kind in list(self._classes):
                self._visit_attributes_of_class(kind, self._classes[kind])
            for name, value, held, seen in list(self._objects):
                self._visit_attributes(name, value, held, seen)
        for _, value, held, _ in self._objects:
            if not isinstance(value, types.ModuleType):
                self.guards.length(held)
        for kind in self._classes:
            if not is_closed(kind) or kind in (Tensor, torch.Tensor):
                self.guards.length(kind)

    def _visit_attributes(self, name: str, value: Any, held: dict[str, Any], seen: set[str]) -> None:
        new = (self._read & held.keys()) - seen
        package = value.__name__.partition(".")[0] if isinstance(value, types.ModuleType) else ""
        closed = bool(package) and (package in CLOSED or is_library(value.__name__))
        for attribute in sorted(new):
            if closed and not is_followed(held[attribute]):
                self._visit_patch(held, attribute, f"{name}.{attribute}")
            else:
                self.guards.names(held, (attribute,))
                self._visit(held[attribute], f"{name}.{attribute}")
        seen |= new
        if isinstance(value, types.ModuleType):
            return
        for attribute in sorted((slots(value) & self._read) - seen):
            seen.add(attribute)
            self.guards.slot(value, attribute)
            if hasattr(value, attribute):
                self._visit(getattr(value, attribute), f"{name}.{attribute}")

    def _visit_attributes_of_class(self, kind: type, seen: set[str]) -> None:
        named = {"forward"} if is_closed(kind) and not issubclass(kind, torch.Tensor) else self._read | {"forward"}
        for attribute in sorted((named & vars(kind).keys()) - seen):
            seen.add(attribute)
            self.guards.names(kind, (attribute,))
            value = vars(kind)[attribute]
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType) or not (is_closed(kind) or type(value) in DESCRIPTORS):
                self._visit(function, f"{kind.__name__}.{attribute}")
            else:
                self._note_identity(value, f"{kind.__name__}.{attribute}")
