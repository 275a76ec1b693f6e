"""In words: what differs between two walks over a step, and where in the user's code the step is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ops_registry.sites import user_frame


def differences(before: Sequence[tuple[str, Any]], after: Sequence[tuple[str, Any]]) -> list[str]:
    """What differs between two lists of named values, in words.

    Values that are others come first and alone; without any, what is now one object with another, or two; else what is new or gone. A walk
    that has met more finds more, which tells nothing.
    """
    old, new = _first_of_each(before), _first_of_each(after)
    others, ties, unpaired = list[str](), list[str](), list[str]()
    for name in [*new, *(name for name in old if name not in new)]:
        if name not in old:
            unpaired.append(f"{name} (new: {_told(new[name])})")
        elif name not in new:
            unpaired.append(f"{name} (gone)")
        elif old[name] != new[name]:
            same = _is_same(old[name]), _is_same(new[name])
            found = ties if any(same) or (_is_place(old[name]) and _is_place(new[name])) else others
            if not all(same):
                found.append(f"{name} ({_told(old[name])} -> {_told(new[name])})")
    return others or ties or unpaired


def _first_of_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """What each name stood for when it was first met: where it was met again, it says no more than that."""
    found = dict[str, Any]()
    for name, fact in pairs:
        found.setdefault(name, fact)
    return found


def _is_same(fact: Any) -> bool:
    """Whether it is the fact that a value was met before, which counts how much was."""
    return isinstance(fact, tuple) and fact[:1] == ("same",)


def _is_place(fact: Any) -> bool:
    """Whether it is the fact that a value is a tensor, which counts how many came before."""
    return isinstance(fact, tuple) and fact[:1] == ("tensor",) and isinstance(fact[1], int)


def _told(fact: Any) -> str:
    """A value in words; a plain one comes with its type, which goes without saying."""
    if isinstance(fact, tuple) and len(fact) == 2 and isinstance(fact[0], type):
        fact = fact[1]
    if isinstance(fact, tuple) and fact[:1] in (("object",), ("same",)):
        return "an object" if fact[0] != "same" else "one met before"
    if isinstance(fact, tuple) and fact[:1] == ("tensor",):
        return "a tensor"
    text = fact if isinstance(fact, str) else repr(fact)
    return text if len(text) < 80 else f"{text[:77]}..."


def users_line() -> str:
    """``at file.py:12`` of the innermost frame that is the user's."""
    frame = user_frame()
    return "at an unknown line" if frame is None else f"at {frame.f_code.co_filename}:{frame.f_lineno}"


def last_name(name: str) -> str:
    """The variable or the attribute in a name such as ``self.batches[0]``."""
    return name.rpartition(".")[2].partition("[")[0].partition(" ")[0]
