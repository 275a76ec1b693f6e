"""What a walk over a step has read, and whether all of it still is what it was: by identity, in one pass in C."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch

from tracer.node import Leaf

_FUNCTION = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_HOOKS = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
_MISSING = object()


class Guards:
    """Filled by a walk, closed by ``close()``; from then on ``unchanged()`` tells whether a walk would find the same again."""

    def __init__(self) -> None:
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[Any] = []
        #: By the id of a namespace or a class: the names in it that are read, and those that are read and are not there.
        self._named: dict[int, tuple[Any, Mapping[str, Any], set[str], set[str]]] = {}
        self._cells: list[types.CellType] = []
        self._nodes: list[Leaf] = []
        self._typed: list[Any] = []
        self._sized: list[Any] = []
        self._functions: list[types.FunctionType] = []
        self._slots: list[tuple[Any, str]] = []
        self._leaves: list[torch.Tensor] = []
        self._asked: list[Callable[[], Any]] = []

    # ---------------------------------------------------------------- filling
    def whole(self, held: dict[Any, Any]) -> None:
        """All that a dictionary holds."""
        self._dicts.append(held)

    def items(self, held: Any) -> None:
        """All that a list, a set or a deque holds."""
        self._lists.append(held)

    def names(self, owner: dict[str, Any] | type, present: Iterable[str], absent: Iterable[str] = ()) -> None:
        """Some names of a namespace or of a class, and the absence of others."""
        held: Mapping[str, Any] = vars(owner) if isinstance(owner, type) else owner
        _, _, there, missing = self._named.setdefault(id(owner), (owner, held, set(), set()))
        there.update(present)
        missing.update(absent)

    def name(self, held: dict[str, Any], name: str) -> None:
        """What a namespace has under a name, if it has it."""
        there = name in held
        self.names(held, (name,) if there else (), () if there else (name,))

    def length(self, held: Mapping[str, Any]) -> None:
        """That no name comes to those that an object or a class has: it might be one that is read."""
        self._sized.append(held)

    def cell(self, cell: types.CellType) -> None:
        """What a variable of a closure holds."""
        self._cells.append(cell)

    def node(self, node: Leaf) -> None:
        """The hooks of a tracked leaf."""
        self._nodes.append(node)

    def leaf(self, tensor: torch.Tensor) -> None:
        """The hooks of a leaf of torch's own autograd."""
        self._leaves.append(tensor)

    def kind(self, value: Any) -> None:
        """The class of an object."""
        self._typed.append(value)

    def function(self, function: types.FunctionType) -> None:
        """The code and the defaults of a function."""
        self._functions.append(function)

    def slot(self, value: Any, name: str) -> None:
        """An attribute that lies in no dictionary."""
        self._slots.append((value, name))

    def answer(self, ask: Callable[[], Any]) -> None:
        """What a call gives, compared by value: for what lies in memory of C."""
        self._asked.append(ask)

    # ---------------------------------------------------------------- asking
    @property
    def size(self) -> tuple[int, ...]:
        """How much is looked at."""
        held = (self._dicts, self._lists, self._cells, self._typed, self._slots, self._asked)
        return tuple(map(len, held))

    def close(self) -> None:
        """Take what everything holds now as what it has to hold."""
        self._empty = [held for held in self._dicts if not held]
        self._dicts = [held for held in self._dicts if held]
        named = list(self._named.values())
        # itemgetter answers with a tuple where it has two names
        self._getters = [(held, itemgetter(*(list(there) * 2))) for _, held, there, _ in named if there]
        self._absent = [
            (held.keys(), frozenset(missing - there)) for _, held, there, missing in named if missing - there
        ]
        self._tables = [table for tensor in self._leaves for table in _HOOKS(tensor) if isinstance(table, dict)]
        self._lengths = list(map(len, self._sized))
        self._held = list(self._current())
        self._answers = [ask() for ask in self._asked]
        self._copies: list[tuple[Any, Any]] = [(held, dict(held)) for held in (*self._dicts, *self._empty)]
        self._list_copies = [(held, held.copy()) for held in self._lists]
        self._cell_copies = [(cell, cell.cell_contents) for cell in self._cells]
        self._name_copies = [
            (owner, {name: held[name] for name in there}, frozenset(missing - there))
            for owner, held, there, missing in named
        ]
        self._key_copies = [(held, frozenset(held)) for held in self._sized if isinstance(held, dict)]
        self._slot_copies = [(value, name, getattr(value, name, _MISSING)) for value, name in self._slots]

    def unchanged(self) -> bool:
        """Whether everything holds the very objects that it held."""
        if any(self._empty):
            return False
        held = self._held
        try:
            now = list(self._current())
        except (KeyError, ValueError):  # a name is gone, a cell has been emptied
            return False
        if len(now) != len(held) or not all(map(is_, now, held)):
            return False
        if list(map(len, self._sized)) != self._lengths:
            return False
        for keys, missing in self._absent:
            if not keys.isdisjoint(missing):
                return False
        return not self._asked or [ask() for ask in self._asked] == self._answers

    def _current(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable(self._lists),
            chain.from_iterable([get(held) for held, get in self._getters]),
            [cell.cell_contents for cell in self._cells],
            [node.extras for node in self._nodes],
            map(type, self._typed),
            chain.from_iterable(map(_FUNCTION, self._functions)),
            [getattr(value, name, _MISSING) for value, name in self._slots],
            chain.from_iterable(map(_HOOKS, self._leaves)),
            chain.from_iterable(map(dict.values, self._tables)),
        )

    def put_back(self) -> None:
        """Put everything back to what it was at the walk, in place."""
        for held, copied in self._copies:
            held.clear()
            held.update(copied)
        for held, copied in self._list_copies:
            held.clear()
            (held.update if isinstance(held, set) else held.extend)(copied)
        for cell, content in self._cell_copies:
            cell.cell_contents = content
        for owner, copied, missing in self._name_copies:
            _put_names_back(owner, copied, missing)
        for held, keys in self._key_copies:
            for name in held.keys() - keys:
                del held[name]
        for value, name, content in self._slot_copies:
            if content is not _MISSING:
                setattr(value, name, content)


def _put_names_back(owner: dict[str, Any] | type, copied: dict[str, Any], missing: frozenset[str]) -> None:
    held = vars(owner) if isinstance(owner, type) else owner
    for name, value in copied.items():
        if held.get(name, _MISSING) is value:
            continue
        if isinstance(owner, type):
            setattr(owner, name, value)
        else:
            owner[name] = value
    for name in missing & held.keys():
        if isinstance(owner, type):
            delattr(owner, name)
        else:
            del owner[name]
