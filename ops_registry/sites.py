"""Where a call was made: the op, the module of the model that runs, and the user's line. Found by a walk up the stack.

The walk costs under a microsecond, since it compares code objects and reads no text: module names are noted when a model is tracked, and
lines are worked out when somebody asks for one.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from ops_registry.errors import SiteError

#: The frame in which a module's forward runs, whatever class it is of.
_MODULE_CALL = torch.nn.Module.__call__.__code__

#: Never the user's line: torch, glassgrad, and what the standard library runs on somebody's behalf.
_NOT_THE_USERS = frozenset({"ops_registry", "tracer", "nn", "torch", "contextlib", "copy", "functools"})

#: Whose a code object is.
_NOBODYS, _USERS, _MODULES, _AGAIN, _PARTS = 0, 1, 2, 3, 4
#: That by the code object's id: the hash of a code object reads all of its contents. ``_held`` keeps each alive, so that no id comes to
#: stand for another.
_whose: dict[int, int] = {id(_MODULE_CALL): _MODULES}
_held: list[CodeType] = [_MODULE_CALL]

#: The paths of each named module, by its id; more than one where the model holds it in several places.
_paths: dict[int, tuple[str, ...]] = {}
_modules: dict[int, weakref.ref[torch.nn.Module]] = {}
_lock = threading.RLock()

#: Under this name the frame in which a module runs keeps the user's line above it, which stays the same as long as it runs: the walks of
#: the module's other calls end there. It goes with the frame.
_ABOVE = "the user's line above this frame"

#: Of a call outside of any module.
NO_MODULE: tuple[str, ...] = ("",)


class Site:
    """Where one call was made. ``site.args`` are the call's arguments in the order of the op's signature, defaults filled in.

    A rule that names ``site`` gets one without ``args``: what it wants of them it names itself, and nothing else stays alive.
    """

    __slots__ = ("_at", "_code", "args", "modules", "op")

    def __init__(
        self, op: str, modules: tuple[str, ...], code: CodeType | None, at: int, args: tuple[Any, ...] = ()
    ) -> None:
        self.op = op
        #: Every path of the module, where the model holds it in several places.
        self.modules = modules
        self._code = code
        self._at = at
        self.args = args

    @property
    def module(self) -> str:
        """The path of the innermost module that was running, as in ``named_modules``; ``""`` outside of any."""
        return self.modules[0]

    @property
    def line(self) -> str | None:
        """``file:line`` of the user's code, the full path; None where no frame is the user's."""
        return None if self._code is None else f"{self._code.co_filename}:{line_number(self._code, self._at)}"

    @property
    def instruction(self) -> tuple[int, int]:
        """The user's code, by its id, and the offset in it: the same for each call from the same place."""
        return id(self._code), self._at

    @property
    def code(self) -> tuple[CodeType | None, int]:
        """The user's code, and the offset of the instruction in it."""
        return self._code, self._at

    def __repr__(self) -> str:
        place = short_line(self.line) if self.line is not None else "an unknown line"
        return f"{self.op} at {place}" + (f" in {self.module}" if self.module else "")


def line_number(code: CodeType, at: int) -> int:
    """The source line of the instruction at offset ``at``."""
    return next((line for start, end, line in code.co_lines() if start <= at < end and line is not None), 0)


def short_line(line: str) -> str:
    """``file.py:12`` of a full path with its line."""
    return line.replace("\\", "/").rpartition("/")[2]


# ---------------------------------------------------------------------- names of modules
def name_modules(root: torch.nn.Module) -> None:
    """Note the path of every module of ``root``, as ``named_modules`` says it. A part of a model that has names keeps them."""
    with _lock:
        if id(root) not in _paths:
            _name_below(root, "")


def _name_below(root: torch.nn.Module, prefix: str) -> None:
    found: dict[int, list[str]] = {}
    for name, module in root.named_modules(prefix=prefix, remove_duplicate=False):
        found.setdefault(id(module), []).append(name)
        if id(module) not in _modules:
            _modules[id(module)] = weakref.ref(module, _forgetter(id(module)))
    for key, names in found.items():
        _paths[key] = tuple(names)


def _forgetter(key: int) -> Any:
    def forget(_: Any) -> None:
        _paths.pop(key, None)
        _modules.pop(key, None)

    return forget


def known_paths() -> list[str]:
    """Every path that some module alive has."""
    return sorted({path for paths in list(_paths.values()) for path in paths})


def named_modules() -> list[tuple[tuple[str, ...], torch.nn.Module]]:
    """Every module alive that has names, with its paths."""
    found = [(key, reference()) for key, reference in list(_modules.items())]
    return [(_paths.get(key, NO_MODULE), module) for key, module in found if module is not None]


def run_as_at(site: Site, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``function`` as if it had been called at ``site``: a stretch that is run again in backward stands where it stood in forward.

    It is known by its frame: a walk up the stack that meets it goes no further.
    """
    return function(*args, **kwargs)


_RUN_AS_AT = run_as_at.__code__
_whose[id(_RUN_AS_AT)] = _AGAIN


def run_parts(place: list[Any], function: Any, *args: Any) -> Any:
    """Run the body of a function that torch writes in Python. ``place`` is an empty list.

    The first of its parts that is recorded notes there what lies above this frame, and the walks of all others end here: in the
    attention of a transformer they have twenty frames to go.
    """
    return function(*args)


_whose[id(run_parts.__code__)] = _PARTS


def _paths_from(frame: FrameType) -> tuple[str, ...]:
    """The paths of the innermost module that has any. ``frame`` is the innermost in which a module runs."""
    paths = _paths.get(id(frame.f_locals["self"]))
    if paths is not None:
        return paths
    running = list(_running_modules(frame))
    with _lock:
        # A model that was never tracked, or a module that joined it since: the outermost one is the root, or has a path itself.
        outermost = running[-1]
        _name_below(outermost, _paths.get(id(outermost), NO_MODULE)[0])
    return next((_paths[id(module)] for module in running if id(module) in _paths), NO_MODULE)


def _running_modules(frame: FrameType | None) -> Iterator[torch.nn.Module]:
    while frame is not None and frame.f_code is not _RUN_AS_AT:
        if frame.f_code is _MODULE_CALL:
            yield frame.f_locals["self"]
        frame = frame.f_back


# ---------------------------------------------------------------------- walks up the stack
def find_module(depth: int) -> tuple[str, ...]:
    """The paths of the innermost module that runs, seen from ``depth`` frames up."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        if code is _MODULE_CALL:
            return _paths_from(frame)
        if frame.f_code is _RUN_AS_AT:
            modules: tuple[str, ...] = frame.f_locals["site"].modules
            return modules
        frame = frame.f_back
    return NO_MODULE


def find_line(depth: int) -> tuple[CodeType | None, int]:
    """Code and instruction of the innermost frame that is the user's, seen from ``depth`` frames up."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        whose = _whose.get(id(code))
        if (_whose_is(frame) if whose is None else whose) == _USERS:
            return code, frame.f_lasti
        if code is _RUN_AS_AT:
            site = frame.f_locals["site"]
            return site._code, site._at
        frame = frame.f_back
    return None, 0


def find_site(op: str, depth: int, args: tuple[Any, ...] = ()) -> Site:
    """The site of the call that is being recorded, seen from ``depth`` frames up."""
    return Site(op, *find_place(depth + 1), args)


def find_place(depth: int) -> tuple[tuple[str, ...], CodeType | None, int]:
    """What a ``Site`` is made of, seen from ``depth`` frames up: paths of the module, the user's code, instruction; one walk for all."""
    frame: FrameType | None = sys._getframe(depth)
    whose_is = _whose
    found: CodeType | None = None
    at = 0
    paths: tuple[str, ...] | None = None
    waiting: list[list[Any]] = []
    inside: dict[str, Any] = {}
    while frame is not None:
        code = frame.f_code
        try:
            whose = whose_is[id(code)]
        except KeyError:
            whose = _whose_is(frame)
        if whose:  # most frames are nobody's
            if whose == _USERS:
                if found is None:
                    found, at = code, frame.f_lasti
                    if paths is not None:
                        break
            elif whose == _MODULES:
                if paths is None:
                    local = frame.f_locals
                    paths = _paths.get(id(local["self"])) or _paths_from(frame)
                    if found is not None:
                        break
                    if _ABOVE in local:
                        found, at = local[_ABOVE]
                        break
                    inside = local
            else:
                above = _noted_above(frame, whose)
                if above:
                    paths = paths or above[0]
                    if found is None:
                        _, found, at = above
                    break
                if found is None and paths is None:
                    waiting.append(above)
        frame = frame.f_back
    inside[_ABOVE] = found, at
    known = paths or NO_MODULE, found, at
    for place in waiting:
        place += known
    return known


def _noted_above(frame: FrameType, whose: int) -> Any:
    """What is known of all above ``frame``: where a stretch that runs again stood; what one of the parts of a function has found."""
    if whose == _AGAIN:
        site = frame.f_locals["site"]
        return site.modules, *site.code
    return frame.f_locals["place"]


class _OpenGraphs(threading.local):
    """How many graphs this thread has open."""

    count = 0


open_graphs = _OpenGraphs()


def site_for_rule(op: str) -> Site:
    """The site of the call being recorded, for a rule that names ``site``. Raises ``SiteError`` outside of ``with tracer.Graph()``."""
    if not open_graphs.count:
        raise SiteError(
            f"the rule for {op} asks for 'site', and no graph is open in this thread: where a call is made is known inside "
            f"`with tracer.Graph(sites=True):` alone. Open one around the forward pass, or leave 'site' out of the rule."
        )
    return find_site(op, 2)


def is_users(frame: FrameType) -> bool:
    """Whether the code of a frame is the user's."""
    return _whose_is(frame) == _USERS


def user_frame() -> FrameType | None:
    """The innermost frame outside torch and glassgrad."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _whose_is(frame) != _USERS:
        frame = frame.f_back
    return frame


def _whose_is(frame: FrameType) -> int:
    code = frame.f_code
    whose = _whose.get(id(code))
    if whose is None:
        _held.append(code)
        package = frame.f_globals.get("__name__", "torch").partition(".")[0]  # without a name: generated code
        whose = _whose[id(code)] = _NOBODYS if package in _NOT_THE_USERS else _USERS
    return whose
