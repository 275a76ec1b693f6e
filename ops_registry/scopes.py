"""Where a replaced rule holds: ``use`` puts rules in the place of others for the calls made inside a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ops_registry.binding import Spelling, own_order
from ops_registry.registry import active, extend, find, op_name
from ops_registry.rule import Rule
from ops_registry.signatures import signature_of
from ops_registry.spellings import spellings

ReplacementRule = Callable[..., Any] | Mapping[str, Callable[..., Any]]


class Layer(dict[Callable[..., Any], Spelling]):
    """Rules in force inside a block, over those outside it."""

    def __init__(self, outer: Mapping[Callable[..., Any], Spelling]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, key: Callable[..., Any]) -> Spelling:
        return self.outer[key]


@contextmanager
def use(replacements: Mapping[Callable[..., Any], ReplacementRule]) -> Iterator[None]:
    """Replace rules for the calls made inside the block by this thread, for every spelling of each op.

    A replacement is a function written as for ``backward``. Where the op's rule covers one input, it returns that gradient;
    where it covers several, it returns a tuple of them in the order of the op's arguments. To replace the formula of some inputs
    only, pass a mapping from input name to function. Calls recorded inside keep their rule when backward runs later, outside.

    Raises ``RuleError`` for a function without arguments to differentiate or a replacement that asks for what the op lacks.
    """
    outer = active.table
    layer = Layer(outer)
    for func, replacement in replacements.items():
        spelling = find(func)
        rule = Rule(op_name(func), signature_of(func)) if spelling is None else spelling.rule
        new = _replaced(rule, replacement)
        if spelling is None:
            forms = spellings(func)
        else:
            forms = {key: spelled.inplace for key, spelled in _items(outer) if spelled.rule.name == rule.name}
        for key, inplace in forms.items():
            order = own_order(key, rule.signature)
            if order is not None:
                layer[key] = Spelling(key, new, inplace, *order)
    active.table = layer
    try:
        yield
    finally:
        active.table = outer


def _items(table: Mapping[Callable[..., Any], Spelling]) -> Iterator[tuple[Callable[..., Any], Spelling]]:
    seen = set()
    while True:
        for key, spelling in table.items():
            if key not in seen:
                seen.add(key)
                yield key, spelling
        if not isinstance(table, Layer):
            return
        table = table.outer


def _replaced(rule: Rule, replacement: ReplacementRule) -> Rule:
    if isinstance(replacement, Mapping):
        for name, function in replacement.items():
            rule = extend(rule, function, name, replacing=True)
        return rule
    inputs = tuple(name for _, name in rule.inputs) or rule.signature.names[:1]
    return extend(rule, replacement, inputs[0] if len(inputs) == 1 else inputs, replacing=True)
