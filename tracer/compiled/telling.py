"""In words: what differs between two walks over a step or what two graphs were made for, and where in the user's code the step is."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ops_registry.sites import user_frame
from tracer.tracked_tensor import Tensor

Named = Sequence[tuple[str, Any]]
#: The name of how arguments are given, which is told where nothing else tells. What stands before it in a list was found by a walk.
NESTING = "how the arguments are nested, or which are given by name"


@dataclass
class Differences:
    """What differs between two lists of named values, in words."""

    #: Values that are others, arguments that are new or gone; what is one object now where there were two, or two in place of one; what is
    #: new in a walk or gone.
    others: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    unpaired: list[str] = field(default_factory=list)
    nesting: list[str] = field(default_factory=list)

    @property
    def told(self) -> list[str]:
        """Values that are others come first and alone. A walk that has met more finds more, which tells nothing beside them."""
        return self.others or self.ties or self.unpaired or self.nesting

    @property
    def distance(self) -> tuple[int, int]:
        """How far the two lists are from one another."""
        return len(self.others), len(self.ties) + len(self.unpaired)


def differences(before: Named, after: Named) -> Differences:
    """What differs. A name may stand there more than once: variables of several functions."""
    old, new = _by_name(before), _by_name(after)
    walked = _walked(before) | _walked(after)
    found = Differences()
    changed, unpaired = list[str](), list[tuple[str, str]]()
    for name in [*new, *(name for name in old if name not in new)]:
        if name == NESTING:
            found.nesting += [NESTING] if old.get(name) != new.get(name) else []
            continue
        tell = _TELLERS.get(name, _told)
        if name not in old or name not in new:
            told = f"{name} (new: {tell(new[name][-1])})" if name in new else f"{name} (gone)"
            unpaired.append((name, told))
        elif old[name] != new[name]:
            pairs = [(a, b) for a, b in zip(old[name], new[name], strict=False) if a != b]
            if not pairs:
                found.unpaired.append(f"{name} (met {len(old[name])} times -> {len(new[name])})")
                continue
            others = [pair for pair in pairs if not _is_tie(*pair)]
            a, b = (others or pairs)[-1]
            changed += [name] if others else []
            if others or not (_is_same(a) and _is_same(b)):
                (found.others if others else found.ties).append(f"{name} ({tell(a)} -> {tell(b)})")
    grown = tuple(f"{name}[" for name in changed)
    for name, told in unpaired:
        if name in walked:
            found.unpaired.append(told)
        elif not name.rpartition(" of ")[2].startswith(grown):  # what is in a list that has grown goes without saying
            found.others.append(told)
    return found


def nearest(made: Sequence[Named], key: Named) -> list[str]:
    """What ``key`` differs in from that of ``made`` that comes nearest to it, in words."""
    return min(
        (differences(other, key) for other in made), key=lambda found: found.distance, default=Differences()
    ).told


def _by_name(named: Named) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in named:
        found.setdefault(name, []).append(value)
    return found


def _walked(named: Named) -> set[str]:
    names = [name for name, _ in named]
    return set(names[: names.index(NESTING)] if NESTING in names else names)


def _is_tie(before: Any, after: Any) -> bool:
    """Whether only what was met before differs: the same object, or how many tensors there were."""
    return _is_same(before) or _is_same(after) or (_is_place(before) and _is_place(after))


def _is_same(fact: Any) -> bool:
    """Whether it is the fact that a value was met before, which counts how much was."""
    return isinstance(fact, tuple) and fact[:1] == ("same",)


def _is_place(fact: Any) -> bool:
    """Whether it is the fact that a value is a tensor, which counts how many came before."""
    return isinstance(fact, tuple) and fact[:1] == ("tensor",) and isinstance(fact[1], int)


def _told(fact: Any) -> str:
    text = _text(fact)
    return text if len(text) < 80 else f"{text[:77]}..."


def users_line() -> str:
    """``at file.py:12`` of the innermost frame that is the user's."""
    frame = user_frame()
    return "at an unknown line" if frame is None else f"at {frame.f_code.co_filename}:{frame.f_lineno}"


def _text(fact: Any) -> str:
    """A value in words; a plain one comes with its type, which goes without saying."""
    if isinstance(fact, type):
        return (
            "tracer.Tensor"
            if fact is Tensor
            else f"{fact.__module__.removeprefix('builtins')}.{fact.__qualname__}".strip(".")
        )
    if isinstance(fact, types.FunctionType | types.MethodType):
        return fact.__qualname__
    if isinstance(fact, types.CodeType):
        return f"{fact.co_name}, at {fact.co_filename}:{fact.co_firstlineno}"
    if type(fact) is not tuple:
        return fact if isinstance(fact, str) else repr(fact)
    if len(fact) == 2 and (isinstance(fact[0], type) or fact[0] in _KINDS):
        kind, value = fact
        return _text(value) if isinstance(kind, type) else _KINDS[kind](value)
    if len(fact) == 2 and isinstance(fact[0], str) and type(fact[1]) is int:
        return f"{_a(fact[0])} of {fact[1]}"
    if (
        len(fact) == 2
        and isinstance(fact[0], str)
        and type(fact[1]) is tuple
        and {tuple, int}.issuperset(map(type, fact[1]))
    ):
        return f"{_a(fact[0])} with {', '.join(map(_text, fact[1])) or 'nothing'}"
    return f"({', '.join(map(_text, fact))}{',' * (len(fact) == 1)})"


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'AEIOUaeiou' else 'a'} {noun}"


#: What the walk over a step notes of values that are not plain.
_KINDS: dict[Any, Callable[[Any], str]] = {
    "object": lambda value: "an object",
    "same": lambda value: "one met before",
    "tensor": lambda value: "a tensor",
    "memory": lambda value: "a view of memory",
    "module": lambda kind: _a(kind.__name__),
    "optimizer": lambda kind: _a(kind.__name__),
    "function": lambda code: f"function {_text(code)}",
}


def _told_rules(blocks: Sequence[tuple[Any, Any]]) -> str:
    """``relu: guided where='1'``, block by block from the innermost out."""
    told = [
        ", ".join(f"{op}: {_text(rule)}" for op, rule in rules) + (f" where={_text(where)!r}" if where else "")
        for rules, where in blocks
    ]
    return "; ".join(told) or "none"


#: How the values of these names are told.
_TELLERS: dict[str, Callable[[Any], str]] = {"rules of use blocks": _told_rules}


def last_name(name: str) -> str:
    """The variable or the attribute in a name such as ``self.batches[0]``."""
    return name.rpartition(".")[2].partition("[")[0].partition(" ")[0]
