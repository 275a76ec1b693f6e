"""What a walk over a step has read, and whether all of it still is what it was: by identity, in one pass in C."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
        self._owners: list[dict[str, Any] | type] = []
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
        _, _, there, missing = self._named.setdefault(id(owner), (owner, _names_of(owner), set(), set()))
        there.update(present)
        missing.update(absent)

    def name(self, held: dict[str, Any], name: str) -> None:
        """What a namespace has under a name, if it has it."""
        there = name in held
        self.names(held, (name,) if there else (), () if there else (name,))

    def length(self, owner: dict[str, Any] | type) -> None:
        """That no name comes to those that an object or a class has: it might be one that is read."""
        self._owners.append(owner)
        self._sized.append(_names_of(owner))

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
        self._at_walk = self.contents()

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
        self._at_walk.put()

    @property
    def at_walk(self) -> Contents:
        """What everything held at the walk."""
        return self._at_walk

    def contents(self) -> Contents:
        """What everything holds now, as far as it can be put there again."""
        dicts = [*self._dicts, *self._empty]
        return Contents(
            [(held, dict(held)) for held in dicts],
            [(held, held.copy()) for held in self._lists],
            [(cell, _content(cell)) for cell in self._cells],
            [(owner, *_parted(held, there | missing)) for owner, held, there, missing in self._named.values()],
            [(owner, dict(held)) for owner, held in zip(self._owners, self._sized, strict=True)],
            [(value, name, getattr(value, name, _MISSING)) for value, name in self._slots],
        )

    def covers(self, held: dict[str, Any], name: str) -> bool:
        """Whether what a namespace has under a name is among what is looked at."""
        if any(held is other for other in chain(self._dicts, self._empty)):
            return True
        _, _, there, missing = self._named.get(id(held), (held, held, (), ()))
        if name in there or name in missing:
            return True
        sized = next((kept for other, kept in self._at_walk.sized if other is held), None)
        return sized is not None and (name not in sized or name not in held)


@dataclass
class Contents:
    """What was held at one moment. Each pair, or triple, is where it was held, and what."""

    dicts: list[tuple[dict[Any, Any], dict[Any, Any]]]
    lists: list[tuple[Any, Any]]
    cells: list[tuple[types.CellType, Any]]
    #: Names that there were, and names that there were not.
    named: list[tuple[dict[str, Any] | type, dict[str, Any], frozenset[str]]]
    sized: list[tuple[dict[str, Any] | type, dict[str, Any]]]
    #: Attributes that lie in no dictionary.
    slots: list[tuple[Any, str, Any]]

    def put(self) -> None:
        """Put all of it there again, in place."""
        for held, copied in self.dicts:
            held.clear()
            held.update(copied)
        for held, copied in self.lists:
            held.clear()
            (held.update if isinstance(held, set) else held.extend)(copied)
        for cell, content in self.cells:
            _fill_cell(cell, content)
        for owner, copied, missing in self.named:
            _put_names_back(owner, copied, missing)
        for owner, copied in self.sized:
            _put_names_back(owner, copied, frozenset(_names_of(owner).keys() - copied.keys()))
        for value, name, content in self.slots:
            _fill_slot(value, name, content)

    def new_since(self, before: Contents) -> list[Any]:
        """The values that are held now where others, or none, were held ``before``."""
        found = [value for _, changed, _ in self._changed_names(before) for value in changed.values()]
        for held, items in self._changed_lists(before):
            known = set(map(id, next(others for other, others in before.lists if other is held)))
            found += [item for item in items if id(item) not in known]
        singles = [*self._changed_cells(before), *self._changed_slots(before)]
        return found + [content for *_, content in singles if content is not _MISSING]

    def put_new(self, before: Contents) -> None:
        """Put there, in place, what is not as it was ``before``, and leave everything else."""
        for owner, changed, gone in self._changed_names(before):
            _put_names_back(owner, changed, gone)
        for held, items in self._changed_lists(before):
            held.clear()
            (held.update if isinstance(held, set) else held.extend)(items)
        for cell, content in self._changed_cells(before):
            _fill_cell(cell, content)
        for value, name, content in self._changed_slots(before):
            _fill_slot(value, name, content)

    def owners_changed_since(self, before: Contents) -> list[Any]:
        """The namespaces, dictionaries and lists that do not hold what they held ``before``."""
        return [owner for owner, *_ in [*self._changed_names(before), *self._changed_lists(before)]]

    def _changed_names(self, before: Contents) -> Iterator[tuple[Any, dict[Any, Any], frozenset[Any]]]:
        now = [*self.dicts, *[(owner, names) for owner, names, _ in self.named], *self.sized]
        then = [*before.dicts, *[(owner, names) for owner, names, _ in before.named], *before.sized]
        for (owner, names), (_, others) in zip(now, then, strict=True):
            changed = {name: value for name, value in names.items() if others.get(name, _MISSING) is not value}
            gone = frozenset(others.keys() - names.keys())
            if changed or gone:
                yield owner, changed, gone

    def _changed_lists(self, before: Contents) -> Iterator[tuple[Any, Any]]:
        for (held, items), (_, others) in zip(self.lists, before.lists, strict=True):
            if len(items) != len(others) or not all(map(is_, items, others)):
                yield held, items

    def _changed_cells(self, before: Contents) -> Iterator[tuple[Any, Any]]:
        for (cell, content), (_, other) in zip(self.cells, before.cells, strict=True):
            if content is not other:
                yield cell, content

    def _changed_slots(self, before: Contents) -> Iterator[tuple[Any, str, Any]]:
        for (value, name, content), (_, _, other) in zip(self.slots, before.slots, strict=True):
            if content is not other:
                yield value, name, content


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has been emptied
        return _MISSING


def _fill_cell(cell: types.CellType, content: Any) -> None:
    if content is not _MISSING:
        cell.cell_contents = content
    elif _content(cell) is not _MISSING:
        del cell.cell_contents


def _fill_slot(value: Any, name: str, content: Any) -> None:
    if getattr(value, name, _MISSING) is content:  # it may be one that nobody can set
        return
    if content is _MISSING:
        delattr(value, name)
    else:
        setattr(value, name, content)


def _parted(held: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """What a namespace has under ``names``, and those that it has not."""
    names = frozenset(names)
    return {name: held[name] for name in names & held.keys()}, names - held.keys()


def _names_of(owner: dict[str, Any] | type) -> Mapping[str, Any]:
    return vars(owner) if isinstance(owner, type) else owner


def _put_names_back(owner: dict[str, Any] | type, copied: dict[str, Any], missing: frozenset[str]) -> None:
    held = _names_of(owner)
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
