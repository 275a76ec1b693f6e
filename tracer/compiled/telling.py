"""What differs between two walks over a step, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def differences(before: Sequence[tuple[str, Any]], after: Sequence[tuple[str, Any]]) -> list[str]:
    """What differs between two lists of named values, in words."""
    old, new = dict(before), dict(after)
    found = []
    for name in [*new, *(name for name in old if name not in new)]:
        if name not in old:
            found.append(f"{name} (new: {_told(new[name])})")
        elif name not in new:
            found.append(f"{name} (gone)")
        elif old[name] != new[name] and not (_is_same(old[name]) and _is_same(new[name])):
            found.append(f"{name} ({_told(old[name])} -> {_told(new[name])})")
    return found


def _is_same(fact: Any) -> bool:
    """Whether it is the fact that a value was met before, which counts how much was."""
    return isinstance(fact, tuple) and fact[:1] == ("same",)


def _told(fact: Any) -> str:
    """A value in words; a plain one comes with its type, which goes without saying."""
    if isinstance(fact, tuple) and len(fact) == 2 and isinstance(fact[0], type):
        fact = fact[1]
    text = fact if isinstance(fact, str) else repr(fact)
    return text if len(text) < 80 else f"{text[:77]}..."


def last_name(name: str) -> str:
    """The variable or the attribute in a name such as ``self.batches[0]``."""
    return name.rpartition(".")[2].partition("[")[0].partition(" ")[0]
