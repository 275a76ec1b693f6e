"""What names a piece of code reads: globals, attributes, and strings that may become attributes."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

#: Instructions that name a global, and those that name an attribute.
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_ATTRIBUTE = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"}
)
#: Builtins that take the name of an attribute, and what gives all attributes at once.
_BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr"})
_ALL = frozenset({"vars", "__dict__", "__slots__", "attrgetter"})


class CodeNames(NamedTuple):
    """What a piece of code names, functions inside it included."""

    #: Globals and builtins.
    names: frozenset[str]
    #: Attributes, and constant strings, which ``getattr(x, "name")`` takes too.
    attributes: frozenset[str]
    #: Modules that it imports itself.
    imports: frozenset[str]
    #: Whether it reads attributes whose names it computes: then any may be read.
    computed: bool


@functools.lru_cache(maxsize=8192)
def names_in(code: types.CodeType) -> CodeNames:
    """What ``code`` names; what it does not name it cannot read, but through what it calls."""
    names, attributes, imports = set[str](), set[str](), set[str]()
    computed = False
    pending: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in _GLOBAL:
            names.add(name)
            pending = instruction if name in _BY_NAME else pending
        elif instruction.opname in _ATTRIBUTE:
            attributes.add(name)
        elif instruction.opname == "IMPORT_NAME":
            imports.add(name)
        elif pending is not None and instruction.opname == "LOAD_CONST" and isinstance(name, str):
            pending = None
        elif pending is not None and instruction.opname.startswith("CALL"):
            computed, pending = True, None
    computed = computed or not _ALL.isdisjoint(names) or not _ALL.isdisjoint(attributes)
    attributes.update(text for constant in code.co_consts for text in _texts(constant))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_in(constant)
            names |= inner.names
            attributes |= inner.attributes
            imports |= inner.imports
            computed = computed or inner.computed
    return CodeNames(frozenset(names), frozenset(attributes), frozenset(imports), computed)


def _texts(constant: Any) -> Iterator[str]:
    """The strings in a constant that may be names."""
    if isinstance(constant, str):
        if constant.isidentifier():
            yield constant
    elif isinstance(constant, tuple | frozenset):
        for item in constant:
            yield from _texts(item)
