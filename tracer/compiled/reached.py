"""What a step reaches beside its arguments: modules, tensors, and the plain values that its code reads, each under a name.

Tracing fixes plain values: a number in a closure, a global, an attribute of ``self`` or of a module. So they belong to what a graph was
made for, and each call asks whether any has been put in another's place since, by identity, in one pass in C.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch

from tracer.node import Leaf
from tracer.tracked_tensor import Tensor

_SIMPLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout,
     range, slice, type(Ellipsis)}
)  # fmt: skip
#: Packages whose functions and objects read nothing of the user's.
_CLOSED = frozenset({"torch", "tracer", "ops_registry", "nn", "builtins", "__future__", *sys.stdlib_module_names}) - {
    "__main__"
}
#: Where libraries are installed: what their code reads beside its arguments and its modules is not followed.
_LIBRARIES = ("site-packages", "dist-packages")


def _package(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def is_closed(value: Any) -> bool:
    """Whether the code of a function or class is torch's, ours or the standard library's."""
    return _package(value) in _CLOSED


def _is_library(module: str | None) -> bool:
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return any(part in file for part in _LIBRARIES)


def names_in(code: types.CodeType) -> set[str]:
    """All names of globals and attributes in a piece of code, functions inside it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    return found


def differences(before: Sequence[tuple[str, Any]], after: Sequence[tuple[str, Any]]) -> list[str]:
    """What differs between two lists of named values, in words."""
    old, new = dict(before), dict(after)
    found = []
    for name in [*new, *(name for name in old if name not in new)]:
        if name not in old:
            found.append(f"{name} (new: {_told(new[name])})")
        elif name not in new:
            found.append(f"{name} (gone)")
        elif old[name] != new[name]:
            found.append(f"{name} ({_told(old[name])} -> {_told(new[name])})")
    return found


def _told(fact: Any) -> str:
    """A value in words; a plain one comes with its type, which goes without saying."""
    if isinstance(fact, tuple) and len(fact) == 2 and isinstance(fact[0], type):
        fact = fact[1]
    text = fact if isinstance(fact, str) else repr(fact)
    return text if len(text) < 80 else f"{text[:77]}..."


class Reached:
    """What a step reached when it was walked. ``unchanged()`` says whether a walk would find the same again."""

    def __init__(
        self,
        step: Callable[..., Any],
        modules: Iterable[torch.nn.Module] = (),
        roots: Iterable[Any] = (),
        leaf_hooks: bool = True,
    ) -> None:
        """``leaf_hooks``: hooks on leaves run in what is captured, and are walked too."""
        self._walked = step, tuple(modules), tuple(roots), leaf_hooks
        #: Every tensor once, ties kept, in the order found, and a name for each.
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        #: Those that stand in a module, by id.
        self.in_modules: set[int] = set()
        #: NumPy arrays outside of modules: what is made of one is fixed, and nothing tells when it is written.
        self.arrays: list[str] = []
        self.modules: list[torch.nn.Module] = []
        #: Each plain value by its name; two walks that find the same facts have found the same step.
        self.facts: list[tuple[str, Any]] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._read: set[str] = set()
        self._objects: list[tuple[str, Any, dict[str, Any], set[str]]] = []
        # What ``unchanged`` looks at: containers whole, names in others, cells, nodes.
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[Any] = []
        self._named: list[tuple[dict[str, Any], tuple[str, ...]]] = []
        self._cells: list[types.CellType] = []
        self._nodes: list[Leaf] = []
        _, given, arguments, _ = self._walked
        for module in given:
            self._visit(module, type(module).__name__)
        for argument in arguments:
            self._visit(argument, f"argument {getattr(argument, '__name__', type(argument).__name__)}")
        self._visit(step, getattr(step, "__name__", "step"))
        self._visit_objects()
        self.places = {id(tensor): position for position, tensor in enumerate(self.tensors)}
        self._empty = [held for held in self._dicts if not held]
        self._dicts = [held for held in self._dicts if held]
        self._held = list(self._current())
        self._copies = [(held, dict(held)) for held in (*self._dicts, *self._empty)]
        self._list_copies = [(held, held.copy()) for held in self._lists]
        self._cell_copies = [(cell, cell.cell_contents) for cell in self._cells]
        self._named_copies = [
            (held, {name: held[name] for name in names if name in held}) for held, names in self._named
        ]

    def unchanged(self) -> bool:
        """Whether every name still holds the very object that it held."""
        if any(self._empty):
            return False
        held = self._held
        try:
            now = list(self._current())
        except ValueError:  # a cell has been emptied
            return False
        return len(now) == len(held) and all(map(is_, now, held))

    def _current(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable(self._lists),
            [held.get(name) for held, names in self._named for name in names],
            [cell.cell_contents for cell in self._cells],
            [node.extras for node in self._nodes],
        )

    def changes(self) -> str:
        """What is not as it was at the walk, in words; empty where all is."""
        if self.unchanged():
            return ""
        again = Reached(*self._walked)
        differ = differences(self.facts, again.facts)
        return differ[0] if differ else ""

    def put_back(self) -> None:
        """Put everything back to what it was at the walk, in place."""
        if self.unchanged():
            return
        for held, copied in self._copies:
            held.clear()
            held.update(copied)
        for held, copied in self._list_copies:
            held.clear()
            (held.update if isinstance(held, set) else held.extend)(copied)
        for cell, content in self._cell_copies:
            cell.cell_contents = content
        for held, copied in self._named_copies:
            if isinstance(held, dict):
                held.update(copied)

    # ------------------------------------------------------------------ the walk
    def _visit(self, value: Any, name: str, module: bool = False) -> None:
        kind = type(value)
        if kind in _SIMPLE or isinstance(value, enum.Enum):
            self.facts.append((name, (kind, repr(value) if kind in (float, complex) else value)))
            return
        known = self._seen.get(id(value))
        if known is not None:
            self.facts.append((name, ("same", known[0])))
            if module and isinstance(value, torch.Tensor):
                self.in_modules.add(id(value))
            return
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, torch.Tensor):
            self._visit_tensor(value, name, module)
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            self.facts.append((name, ("array", value.shape, value.tobytes())))
            if not module:
                self.arrays.append(name)
        elif isinstance(value, torch.nn.Module):
            self._visit_module(value, name)
        elif isinstance(value, dict):
            self.facts.append((name, ("dict", tuple(k if type(k) in _SIMPLE else id(k) for k in value))))
            self._dicts.append(value)
            for key, item in list(value.items()):
                self._visit(item, f"{name}[{key!r}]", module)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            self.facts.append((name, (kind.__name__, len(value))))
            if not isinstance(value, tuple | frozenset):
                self._lists.append(value)
            for position, item in enumerate(list(value)):
                self._visit(item, f"{name}[{position}]", module)
        elif not self._visit_code(value, name):
            self._visit_object(value, name)

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
        else:
            return False
        return True

    def _visit_function(self, function: types.FunctionType, name: str) -> None:
        code = function.__code__
        self.facts.append((name, ("function", code)))
        if is_closed(function) or _is_library(function.__module__):
            return
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._cells.append(cell)
            try:
                self._visit(cell.cell_contents, variable)
            except ValueError:  # not assigned yet
                self._cells.remove(cell)
        read = names_in(code)
        self._read |= read
        known = function.__globals__
        found = tuple(sorted(read & known.keys()))
        self._named.append((known, found))
        for variable in found:
            self._visit(known[variable], variable)
        for default in (function.__defaults__, function.__kwdefaults__):
            if default:
                self._visit(default, f"{name}'s defaults")

    def _visit_tensor(self, tensor: torch.Tensor, name: str, module: bool) -> None:
        self.facts.append((name, ("tensor", len(self.tensors))))
        self.tensors.append(tensor)
        self.names.append(name)
        if module:
            self.in_modules.add(id(tensor))
        if type(tensor) is not Tensor:
            return
        self._named.append((tensor.__dict__, ("_node",)))
        node = tensor._node
        if isinstance(node, Leaf) and self._walked[-1]:
            self._nodes.append(node)
            if node.extras is not None:
                self._visit(node.extras.hooks, f"the hooks of {name}")
                self._visit(node.extras.accumulate_hooks, f"the hooks on .grad of {name}")

    def _visit_module(self, module: torch.nn.Module, name: str) -> None:
        self.modules.append(module)
        self.facts.append((name, ("module", type(module))))
        state = vars(module)
        self._dicts.append(state)
        for kind in ("_parameters", "_buffers", "_modules"):
            held = state[kind]
            self._dicts.append(held)
            self.facts.append((f"{name}.{kind}", tuple(held)))
            for part, value in held.items():
                self._visit(value, f"{name}.{part}", module=True)
        for attribute, value in state.items():
            if attribute not in ("_parameters", "_buffers", "_modules"):
                self._visit(value, f"{name}.{attribute}", module=True)
        self._visit_methods(type(module), {"forward"})

    def _visit_methods(self, kind: type, named: set[str]) -> None:
        """The methods of a user's class that are named in code, or always called."""
        for part in kind.__mro__:
            if is_closed(part) or _is_library(part.__module__):
                continue
            for attribute, value in vars(part).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType) and attribute in named:
                    self._visit(function, f"{part.__name__}.{attribute}")

    def _visit_object(self, value: Any, name: str) -> None:
        kind = value if isinstance(value, type) else type(value)
        self.facts.append((name, ("object", id(value))))
        if isinstance(value, types.ModuleType):
            closed = value.__name__.partition(".")[0] in _CLOSED or _is_library(value.__name__)
        else:
            closed = is_closed(kind)
        held = getattr(value, "__dict__", None)
        if not closed and isinstance(held, dict | types.MappingProxyType):
            self._objects.append((name, value, held, set()))  # type: ignore[arg-type]

    def _visit_objects(self) -> None:
        """Of objects, those attributes that are named in code that was reached; which may lead to more code, and more objects."""
        found = True
        while found:
            found = False
            for name, value, held, seen in list(self._objects):
                new = (self._read & held.keys()) - seen
                if not isinstance(value, types.ModuleType):
                    self._visit_methods(value if isinstance(value, type) else type(value), self._read)
                if new:
                    found = True
                    seen |= new
                    self._named.append((held, tuple(sorted(new))))
                    for attribute in sorted(new):
                        self._visit(held[attribute], f"{name}.{attribute}")
