"""What ``where=`` means: whether a call stands in a module, on a line, or where the user's own predicate says."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from ops_registry.errors import RuleError, UnsupportedCallError
from ops_registry.sites import NO_MODULE, Site, find_line, find_module, find_site, known_paths, short_line
from ops_registry.torch_private import DisableTorchFunctionSubclass

Where = str | Callable[[Site], bool]

_LINE = re.compile(r".+:\d+")

#: How many places a scope remembers, for its error.
_REMEMBERED = 1000


class Scope:
    """Where a replaced rule holds, and where it has been asked about."""

    def __init__(self, where: Where) -> None:
        if not isinstance(where, str) and not callable(where):
            raise RuleError(
                f"where={where!r} is neither a module path or glob ('layer4.*'), nor a line ('model.py:12'), nor a predicate of a site"
            )
        self.where = where
        #: The answer by place: by module or line the one answer, by predicate whether it ever said yes.
        self._answers: dict[Any, bool] = {}
        self._sites: dict[Any, Site] = {}
        #: Whether a call of an op with a rule of this scope has been made, and whether one of them was in the scope.
        self.asked = self.matched = False
        #: ``holds(op, bind)``: whether the call that is being recorded is in the scope; ``bind()`` gives its arguments.
        self.holds: Callable[[str, Callable[[], tuple[Any, ...]]], bool] = self._by_module
        if callable(where):
            self.holds = self._by_predicate
        elif _is_line(where):
            self.holds = self._by_line

    def may_hold_here(self, op: str) -> bool:
        """Whether calls of ``op`` made where this thread is may be in the scope: a predicate, which may ask for arguments, is not asked."""
        return callable(self.where) or self.holds(op, tuple)

    def _by_module(self, op: str, bind: Callable[[], tuple[Any, ...]]) -> bool:
        modules = find_module(2)
        found = self._answers.get(modules)
        if found is None:
            found = any(matches(str(self.where), path) for path in modules)
            self._remember(modules, Site(op, modules, None, 0), found)
        return found

    def _by_line(self, op: str, bind: Callable[[], tuple[Any, ...]]) -> bool:
        code, at = find_line(2)
        found = self._answers.get((id(code), at))
        if found is None:
            site = Site(op, NO_MODULE, code, at)
            found = _on_line(str(self.where), site)
            self._remember((id(code), at), site, found)
        return found

    def _by_predicate(self, op: str, bind: Callable[[], tuple[Any, ...]]) -> bool:
        assert callable(self.where)
        with DisableTorchFunctionSubclass():  # what the predicate computes is nobody's history
            site = find_site(op, 2, bind())
            found = bool(self.where(site))
        key = (site.op, site.modules, site.instruction)
        if found or key not in self._answers:
            site.args = ()
            self._remember(key, site, found)
        return found

    def holds_at(self, site: Site) -> bool:
        """Whether a call that was recorded at ``site`` is in the scope."""
        key: Any
        if callable(self.where):
            key = site.op, site.modules, site.instruction
            with DisableTorchFunctionSubclass():
                found = bool(self.where(site))
        elif _is_line(self.where):
            key, found = site.instruction, _on_line(self.where, site)
        else:
            key, found = site.modules, any(matches(self.where, path) for path in site.modules)
        if found or key not in self._answers:
            self._remember(key, Site(site.op, site.modules, *site.code), found)
        return found

    def _remember(self, key: Any, site: Site, found: bool) -> None:
        if len(self._answers) >= _REMEMBERED:
            self._answers.clear()
            self._sites.clear()
        self._answers[key] = found
        self._sites[key] = site
        self.asked = True
        self.matched |= found

    def places(self) -> list[str]:
        """Where the ops were called, in words."""
        if callable(self.where):
            return sorted({repr(site) for site in self._sites.values()})
        if _is_line(self.where):
            return sorted({short_line(site.line) for site in self._sites.values() if site.line is not None})
        return sorted({site.module or "outside of any module" for site in self._sites.values()})

    def crowded(self) -> list[str]:
        """Modules where calls were in the scope, several of them inside one module that ``where`` names; else none."""
        if not isinstance(self.where, str) or _is_line(self.where):
            return []
        inside: dict[str, list[str]] = {}
        for key, found in self._answers.items():
            if found:
                inside.setdefault(_outermost(self.where, key[0]), []).append(key[0])
        return next((sorted(paths) for paths in inside.values() if len(paths) > 1), [])

    def near(self) -> list[str]:
        """What the user may have meant: names like ``where`` of modules that there are, or of lines where the ops were called."""
        if callable(self.where):
            return []
        candidates = (
            self.places()
            if _is_line(self.where)
            else [path for path in known_paths() if path and not matches(self.where, path)]
        )
        return difflib.get_close_matches(self.where, candidates, n=3, cutoff=0.5)


def _is_line(where: str) -> bool:
    return _LINE.fullmatch(where) is not None


def _on_line(where: str, site: Site) -> bool:
    return f"/{site.line}".replace("\\", "/").endswith(f"/{where}")


def matches(where: str, path: str) -> bool:
    """Whether a module path, or that of a module around it, is ``where`` or fits it as a glob."""
    while True:
        if path == where or fnmatchcase(path, where):
            return True
        if not path:
            return False
        path = path.rpartition(".")[0]


def _outermost(where: str, path: str) -> str:
    """The outermost of the modules around ``path``, itself included, that ``where`` names."""
    if not where:
        return ""
    parts = path.split(".")
    around = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((outer for outer in around if outer == where or fnmatchcase(outer, where)), path)


def bound_arguments(
    bind: Callable[..., tuple[Any, ...]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """A call's arguments in the order of the op's signature, or as they came where they do not fit it."""
    try:
        return bind(args, kwargs)
    except UnsupportedCallError:
        return args
