"""What a step runs while it is captured: code, and the objects in its hands; and calls that read what no graph can know.

A walk over closures, globals and attributes cannot see where a call leads: into a library, through an operator, a hook, a rule. So the
capture looks on with a profile function, and the walk is made again with what was met.
"""

from __future__ import annotations

import builtins
import datetime
import enum
import gc
import inspect
import io
import logging
import os
import random
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from tracer.compiled.caches import forget_made_by
from tracer.compiled.code_names import names_in
from tracer.compiled.stopped import REASONS, caller_of, refusal_of
from tracer.errors import CaptureError

#: Whose a piece of code is: the engine's and torch's; torch's layers; the standard library's; anybody else's; refused; told of; stopped.
_ENGINES, _LAYERS, _STANDARD, _OTHERS, _REFUSED, _TOLD, _STOPPED = range(7)
#: What torch calls for its own ends counts as torch.
_ENGINE = frozenset(
    {
        "torch",
        "tracer",
        "ops_registry",
        "builtins",
        "typing_extensions",
        "_distutils_hack",
        "sympy",
        "mpmath",
        "triton",
        "rustworkx",
    }
)
#: Parts of torch that users patch and whose objects users hold.
_TORCH_LAYERS = ("torch.nn.", "torch.functional")
_TORCH_OBJECTS = ("torch.distributions.", "torch.utils.data.")
#: Ours, which do their own work around a graph.
_WRAPPERS = ("nn.parallel.",)
#: What runs around each layer, and is nobody's to patch.
_AROUND_LAYERS = frozenset({"torch.nn.modules.module", "torch.nn.modules.container", "torch.nn.parameter"})
#: What of the standard library is as good as C: it reads clocks and files for its own ends.
_QUIET = frozenset(
    {"logging", "warnings", "linecache", "tokenize", "traceback", "inspect", "threading", "contextlib", "dataclasses", "typing", "abc",
     "enum", "types", "importlib", "weakref", "_weakrefset", "dis", "ast", "re", "genericpath", "posixpath", "ntpath"}
)  # fmt: skip
_CONSTANT = (
    type(None), bool, int, float, complex, str, bytes, range, slice, tuple, frozenset, enum.Enum,
    torch.dtype, torch.device, torch.memory_format, torch.layout,
)  # fmt: skip

_CLOCK = "reads the clock", "Take times outside of the step, and pass them as tensors."
_FILE = "opens a file", "Read it outside of the step, and pass what was read as an argument."
_RANDOM = "draws random numbers from the operating system", "Draw them outside of the step, and pass them as tensors."
_SEEDING = "seeds the random numbers itself", "Seed them before the call."
_SEED = "reads the seed of the random numbers", "Read it outside of the step, and pass it as an argument."
_FILES = "asks about files", "Ask outside of the step, and pass the answer as an argument."
_TYPED = "reads what is typed", "Read it outside of the step, and pass it as an argument."

_REFUSED_CALLS: dict[Any, tuple[str, str]] = {
    **dict.fromkeys(
        [value for name, value in vars(time).items() if name.removesuffix("_ns") in
         ("time", "perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime", "localtime", "gmtime", "ctime")], _CLOCK
    ),
    builtins.open: _FILE, io.open: _FILE, os.open: _FILE, os.read: _FILE,
    builtins.input: _TYPED,
    os.urandom: _RANDOM,
    **dict.fromkeys((os.stat, os.lstat, os.listdir, os.scandir, os.access), _FILES),
}  # fmt: skip
_REFUSED_CODE: dict[int, tuple[str, str]] = {
    id(torch.load.__code__): _FILE,
    id(torch.random.initial_seed.__code__): _SEED,
    id(torch.random.seed.__code__): _SEEDING,
    id(torch.random.manual_seed.__code__): _SEEDING,
    id(random.Random.seed.__code__): _RANDOM,
    **{
        id(f.__code__): _FILES
        for f in (os.path.exists, os.path.isfile, os.path.isdir, os.path.getsize, os.path.getmtime)
        if isinstance(f, types.FunctionType)
    },
}
#: What is done while a step is captured, and not when its graph runs.
_TOLD_CALLS: dict[Any, str] = {
    builtins.print: "prints",
    **dict.fromkeys((os.write, os.mkdir, os.remove, os.unlink, os.rename, os.replace, os.rmdir), "writes files"),
}
_TOLD_CODE = {id(logging.Logger.handle.__code__): "logs", id(torch.save.__code__): "saves a file"}
_STREAMS = ("write", "writelines", "flush")


_ABSENT = object()


class Seen:
    """What a capture of a step has met, beyond what a walk finds by itself."""

    def __init__(self) -> None:
        #: By id: code, the globals it reads, and whether it belongs to torch's layers.
        self.codes: dict[int, tuple[types.CodeType, dict[str, Any], bool]] = {}
        #: By the ids of their code and of what their cells hold: of those that a step makes at each run, one.
        self.functions: dict[tuple[int, ...], types.FunctionType] = {}
        #: By id: a name for it, and whether any of its attributes may be read.
        self.objects: dict[int, tuple[str, Any, bool]] = {}
        #: Whether any attribute of an argument may be read.
        self.whole_arguments = False

    def __le__(self, other: Seen) -> bool:
        return (
            self.whole_arguments <= other.whole_arguments
            and self.codes.keys() <= other.codes.keys()
            and self.functions.keys() <= other.functions.keys()
            and all(
                key in other.objects and (other.objects[key][2] or not whole)
                for key, (_, _, whole) in self.objects.items()
            )
        )

    def __or__(self, other: Seen) -> Seen:
        both = Seen()
        both.codes = other.codes | self.codes
        both.functions = other.functions | self.functions
        both.whole_arguments = other.whole_arguments or self.whole_arguments
        both.objects = dict(other.objects)
        for key, (name, value, whole) in self.objects.items():
            both.objects[key] = name, value, whole or (key in other.objects and other.objects[key][2])
        return both


class Observer:
    """Looks on while a step runs."""

    def __init__(self) -> None:
        self.codes: dict[int, tuple[types.CodeType, dict[str, Any], bool]] = {}
        #: What the step did that no graph can do: what, where, and the remedy.
        self.refused: list[tuple[str, str, str]] = []
        #: The error for a call that was stopped, which code of the step may have caught.
        self.stopped: CaptureError | None = None
        #: What it did that its graph does not do: what, and where.
        self.told: dict[str, str] = {}
        self._objects: dict[int, list[Any]] = {}
        #: The ids of the objects that the step has made, and that live on.
        self.made: set[int] = set()
        #: By the id of their object or code: namespaces as they were when they were met.
        self._before: dict[int, tuple[str, dict[str, Any], dict[str, Any]]] = {}
        #: By the id of code with free variables: what these held when it ran.
        self._closures: dict[int, list[dict[str, Any]]] = {}
        self._whose: dict[int, int] = {}
        self._kept: list[types.CodeType] = []
        #: The outermost call of what runs beside the step: a frame, or a function of C's.
        self._aside: Any = None
        self._callbacks = {id(getattr(inspect.unwrap(callback), "__code__", None)) for callback in gc.callbacks}

    def seen(self) -> Seen:
        """All that was met. Objects that only the step's own run has held are left out."""
        found = Seen()
        found.codes = self.codes
        self._drop_temporaries()
        found.objects = {key: (name, value, whole) for key, (value, name, whole) in self._objects.items()}
        closures = [self.codes[key][0] for key in self._closures]
        for function in gc.get_referrers(*closures) if closures else ():
            if isinstance(function, types.FunctionType) and self._has_run(function):
                held = (id(_content(cell)) for cell in function.__closure__ or ())
                key = (id(function.__code__), *held)
                found.functions[key] = function
        return found

    def _has_run(self, function: types.FunctionType) -> bool:
        """Whether a function is one of those that have run, among all that a factory has made."""
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        return any(
            all(_content(cells[name]) is value for name, value in held.items())
            for held in self._closures.get(id(code), ())
        )

    def forget(self) -> None:
        """Let go of what was met: arguments of one call among it."""
        self._objects.clear()
        self._before.clear()
        self._closures.clear()

    def refusal(self) -> CaptureError:
        """The error for the first thing that no graph can do."""
        what, where, remedy = self.refused[0]
        return CaptureError(f"the step {what}, {where}: what it got would be the same for ever in a graph. {remedy}")

    def changed(self) -> list[tuple[str, dict[str, Any], str]]:
        """Attributes and globals that the step has changed, and that are put back: a name for each, its namespace, its name there."""
        self._drop_temporaries()
        found = []
        for owner, (name, held, before) in self._before.items():
            for key in list(before if owner in self.codes else held.keys() | before.keys()):
                if held.get(key, _ABSENT) is not before.get(key, _ABSENT):
                    found.append((f"{name}.{key}" if name else key, held, key))
                    held.pop(key, None)
                    if key in before:
                        held[key] = before[key]
        return found

    def _drop_temporaries(self) -> None:
        objects = self._objects
        # A dictionary of constants is not known to the collector; those among locals are nearly always ``**kwargs``.
        untracked = {key for key, (value, _, _) in objects.items() if not gc.is_tracked(value)}
        for key in (self.made | untracked) & objects.keys():
            del objects[key]
            self._before.pop(key, None)
        while True:
            count = len(objects)
            for key in list(objects):
                if sys.getrefcount(objects[key][0]) <= 2:
                    del objects[key]
                    self._before.pop(key, None)
            if len(objects) == count:
                return

    # ---------------------------------------------------------------- the profile function
    def profile(self) -> Callable[[types.FrameType, str, Any], None]:
        """What Python calls at each call and return: nearly all of them are the engine's."""
        whose_of, look = self._whose.get, self._look

        def profile(frame: types.FrameType, event: str, arg: Any) -> None:
            whose = whose_of(id(frame.f_code))
            if whose is None or whose > _LAYERS:
                look(frame, event, arg, whose)

        return profile

    def _look(self, frame: types.FrameType, event: str, arg: Any, whose: int | None) -> None:
        whose = self._note(frame) if whose is None else whose
        if whose == _STOPPED:
            if event == "call" and self._aside is None:
                self._stop(frame)
            return
        if whose == _TOLD:
            if event == "call" and self._aside is None and _asked_by_others(frame):
                self._tell_of(frame)
            return
        if whose <= _LAYERS or self._is_aside(frame, event, arg):
            return
        if event == "call" or event == "return":
            if whose == _REFUSED:
                if event == "call" and _asked_by_others(frame) and not _seeds_with_a_number(frame):
                    self._refuse(_REFUSED_CODE[id(frame.f_code)], frame)
            elif whose == _OTHERS or _asked_by_others(frame):
                self._note_code(frame)
                self._note_objects(frame)
        elif event == "c_call":
            self._note_call(frame, whose, arg)

    def _is_aside(self, frame: types.FrameType, event: str, arg: Any) -> bool:
        """Whether a handler of log records runs, a finder of modules, a callback of the collector, or what ``print`` prints to.

        What these do is no part of the step.
        """
        if self._aside is None:
            if event == "c_call" and arg is builtins.print:
                self._note_call(frame, _whose_is(frame), arg)
                self._aside = arg
            elif event == "call" and (stream := _stream_of(frame)) is not None and frame.f_back is not None:
                self._note_call(frame.f_back, _whose_is(frame.f_back), stream.write)
                self._aside = frame
            elif event == "call" and (id(frame.f_code) in self._callbacks or _is_called_aside(frame)):
                self._aside = frame
            return self._aside is not None
        if (event == "return" and frame is self._aside) or (
            event in ("c_return", "c_exception") and arg is self._aside
        ):
            self._aside = None
        return True

    def _note(self, frame: types.FrameType) -> int:
        code = frame.f_code
        self._kept.append(code)  # its id stands for it
        known = (_REFUSED, _REFUSED_CODE), (_TOLD, _TOLD_CODE), (_STOPPED, REASONS)
        whose = next((kind for kind, codes in known if id(code) in codes), None) or _whose_is(frame)
        self._whose[id(code)] = whose
        if whose == _LAYERS:
            self.codes[id(code)] = code, frame.f_globals, True
        return whose

    def _note_code(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if id(code) not in self.codes:
            self.codes[id(code)] = code, frame.f_globals, False
            known = frame.f_globals
            self._before[id(code)] = "", known, {n: known[n] for n in names_in(code).names & known.keys()}

    def _note_objects(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if code.co_freevars:
            held = {name: frame.f_locals[name] for name in code.co_freevars if name in frame.f_locals}
            known_closures = self._closures.setdefault(id(code), [])
            if not any(all(held.get(name) is value for name, value in other.items()) for other in known_closures):
                known_closures.append(held)
        whole = names_in(code).computed and self._whose[id(code)] == _OTHERS
        for variable, value in frame.f_locals.items():
            if isinstance(value, _CONSTANT) or _is_passive(value):
                continue
            known = self._objects.get(id(value))
            if known is None:
                self._objects[id(value)] = [value, f"{variable} in {code.co_name}", whole]
                space = getattr(value, "__dict__", None)
                if isinstance(space, dict) and not isinstance(value, types.ModuleType):
                    self._before[id(value)] = variable, space, dict(space)
            elif whole:
                known[2] = True

    def _note_call(self, frame: types.FrameType, whose: int, function: Any) -> None:
        try:
            found, told = _REFUSED_CALLS.get(function), _TOLD_CALLS.get(function)
        except TypeError:  # bound to an object without a hash
            return
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if found is None and name in ("now", "utcnow", "today"):
            found = _CLOCK if isinstance(owner, type) and issubclass(owner, datetime.date) else None
        if (
            told is None
            and name in _STREAMS
            and (isinstance(owner, io.IOBase) or owner is sys.stdout or owner is sys.stderr)
        ):
            told = "writes to a stream"
        if (found or told) and (whose == _OTHERS or _asked_by_others(frame)):
            if found is not None:
                self._refuse(found, frame)
            if told is not None:
                self.told.setdefault(told, _line(frame))

    def _tell_of(self, frame: types.FrameType) -> None:
        caller = _caller(frame)
        if caller is not None and not caller.f_code.co_name.endswith("_once"):
            self.told.setdefault(_TOLD_CODE[id(frame.f_code)], _line(frame))

    def _stop(self, frame: types.FrameType) -> None:
        """Raise in the place of a call of somebody's, before it has changed anything."""
        caller = caller_of(frame)
        if caller is not None and _whose_is(caller) in (_OTHERS, _STANDARD):
            self.stopped = refusal_of(frame, _line(caller)) or self.stopped
            if self.stopped is not None:
                raise self.stopped

    def _refuse(self, found: tuple[str, str], frame: types.FrameType) -> None:
        self.refused.append((found[0], _line(frame), found[1]))


def _seeds_with_a_number(frame: types.FrameType) -> bool:
    return frame.f_code is random.Random.seed.__code__ and frame.f_locals.get("a") is not None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _ABSENT


def _stream_of(frame: types.FrameType) -> Any:
    """What prints go to, where that is written in Python and this is a method of it."""
    owner = frame.f_locals.get("self")
    return owner if owner is sys.stdout or owner is sys.stderr else None


def _is_called_aside(frame: types.FrameType) -> bool:
    caller = "" if frame.f_back is None else frame.f_back.f_globals.get("__name__") or ""
    return caller.partition(".")[0] in ("logging", "importlib")


def _line(frame: types.FrameType) -> str:
    """Of what a frame does, the line outside of the standard library."""
    line = frame if _whose_is(frame) == _OTHERS else _caller(frame) or frame
    return f"at {line.f_code.co_filename}:{line.f_lineno}"


def _whose_is(frame: types.FrameType) -> int:
    module = frame.f_globals.get("__name__")
    if module is None or module.startswith(("namedtuple_", "numpy.")):  # generated code; NumPy's, which torch calls too
        return _STANDARD
    package = module.partition(".")[0]
    if package in _ENGINE:
        if module.startswith(_TORCH_OBJECTS):
            return _OTHERS
        return _LAYERS if module.startswith(_TORCH_LAYERS) and module not in _AROUND_LAYERS else _ENGINES
    if package in _QUIET or module.startswith(_WRAPPERS):
        return _ENGINES
    return _STANDARD if package in sys.stdlib_module_names and module != "__main__" else _OTHERS


def _asked_by_others(frame: types.FrameType) -> bool:
    """Whether the nearest caller outside of the standard library is neither torch nor the engine."""
    caller = _caller(frame)
    return caller is not None and _whose_is(caller) == _OTHERS


def _caller(frame: types.FrameType) -> types.FrameType | None:
    """The nearest caller outside of the standard library."""
    caller = frame.f_back
    while caller is not None and (_whose_is(caller) == _STANDARD or caller.f_globals.get("__name__") == "logging"):
        caller = caller.f_back
    return caller


def _is_passive(value: Any) -> bool:
    """What is found by other ways, or says nothing."""
    kind = type(value)
    return (
        (kind.__module__ == "numpy" and kind.__name__ == "ndarray")
        or issubclass(kind, torch.Tensor | torch.nn.Module | BaseException | types.BuiltinFunctionType | types.CodeType)
        or issubclass(kind, types.FrameType | types.TracebackType | types.CellType | types.GeneratorType)
        or (kind.__module__.startswith("torch.") and not kind.__module__.startswith(_TORCH_OBJECTS))
        or kind.__module__.partition(".")[0] in ("tracer", "ops_registry")
        or kind.__module__.startswith(_WRAPPERS)
    )


def run_observed(call: Callable[[], Any], observer: Observer) -> Any:
    """``call``, with ``observer`` as the profile function of this thread; one that was there comes back.

    Raises ``CaptureError`` for a call that fails after it did what no graph can do.
    """
    before = sys.getprofile()
    counts = not gc.get_freeze_count()
    if counts:  # what is not frozen afterwards was made by the call
        gc.freeze()
    sys.setprofile(observer.profile())
    try:
        return call()
    except Exception as error:
        sys.setprofile(None)
        observer.changed()
        if observer.refused:
            raise observer.refusal() from error
        raise
    finally:
        sys.setprofile(None)
        if counts:
            observer.made = set(map(id, gc.get_objects()))
            gc.unfreeze()
        forget_made_by(observer.codes.values())
        enable = getattr(before, "enable", None)
        if enable is not None:  # cProfile's, which lies in C
            enable()
        elif before is not None:
            sys.setprofile(before)
