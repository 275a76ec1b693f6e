"""What a change of torch is made of; ``tracer.install`` lists them all."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Change:
    """``setattr(owner, name, value)``."""

    owner: Any
    name: str
    value: Any
    reason: str
    #: The op of torch's that TorchScript is to take the value for, where it is one.
    script_name: str = ""


@dataclass(frozen=True)
class LaterChange:
    """The same for a class of a module that torch loads on demand, or for the module itself (``owner`` is empty).

    ``value`` takes the method that is there, and returns ours.
    """

    module: str
    owner: str
    name: str
    value: Callable[[Any], Any]
    reason: str

    def make(self, module: ModuleType) -> None:
        """Make the change, if this release of torch has such a method."""
        owner: Any = getattr(module, self.owner, None) if self.owner else module
        there = vars(owner).get(self.name) if owner is not None else None
        if there is None:
            return
        function = getattr(there, "__func__", None)
        setattr(owner, self.name, self.value(there) if function is None else type(there)(self.value(function)))


def _calling(*args: Any, **kwargs: Any) -> Any:
    """What the code of a redirected function is, but for the name of what it calls."""
    return _replacement(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


def redirected(
    function: Any, replacement: Callable[[Callable[..., Any]], Callable[..., Any]], reason: str
) -> tuple[Change, ...]:
    """What lets a function of torch's written in Python call another one, which ``replacement`` makes of a copy of it.

    The function stays the same object: users import it by name, mostly before they import glassgrad.
    """
    names, name = function.__globals__, f"_glassgrad_{function.__name__}"
    original = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    return (
        Change(sys.modules[names["__name__"]], name, replacement(original), reason),
        Change(
            function,
            "__signature__",
            inspect.signature(function),
            "what help() shows of the function that has other code now",
        ),
        Change(
            function,
            "__defaults__",
            None,
            "the code of the function, which is other code now, has no arguments to give them to",
        ),
        Change(function, "__code__", _calling.__code__.replace(co_name=function.__name__, co_names=(name,)), reason),
    )
