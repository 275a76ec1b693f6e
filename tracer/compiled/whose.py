"""Whose code and objects are: torch's, ours, the standard library's, an installed library's, or the user's."""

from __future__ import annotations

import sys
from typing import Any

#: Packages whose functions and objects read nothing of the user's.
_ENGINE = frozenset({"torch", "tracer", "ops_registry", "nn", "builtins", "__future__"})
_OURS = frozenset({"tracer", "ops_registry", "nn"})
CLOSED = (_ENGINE | sys.stdlib_module_names) - {"__main__"}
#: Where libraries are installed: what their code reads is followed where it has been seen to run.
_LIBRARIES = ("site-packages", "dist-packages")


def _package(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def is_closed(value: Any) -> bool:
    """Whether the code of a function or class is torch's, ours or the standard library's."""
    return _package(value) in CLOSED


def is_library(module: str | None) -> bool:
    """Whether a module of this name is installed."""
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return any(part in file for part in _LIBRARIES)


def is_engines(kind: type) -> bool:
    """Whether objects of a class are torch's or ours, which a step reads through calls alone."""
    return (
        _package(kind) in _ENGINE
        and kind.__module__ != "builtins"
        and "distributions" not in kind.__module__
        and not kind.__module__.startswith("torch.utils.data.")
    )


def is_ours(kind: type) -> bool:
    """Whether a class is ours: nobody but us reads attributes of its objects."""
    return _package(kind) in _OURS
