"""Running a script, or a module, as ``python script.py`` and ``python -m module`` do: as ``__main__``, with arguments of its own."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import traceback
from types import CodeType, ModuleType, TracebackType
from typing import Any

from tracer.errors import ReportError


class Script:
    """What is to run. Raises ``ReportError`` where there is no such file or module, and ``SyntaxError`` where it is no Python."""

    def __init__(self, name: str, args: list[str], *, is_module: bool) -> None:
        self.module = ModuleType("__main__")
        #: How reports call it.
        self.name = name
        self._code, path = self._read_module(name) if is_module else self._read_file(name)
        self.module.__dict__.update(__file__=path, __builtins__=__builtins__)
        self._args = [path if is_module else name, *args]
        self._folder = None if is_module else os.path.dirname(os.path.realpath(path))

    def run(self) -> BaseException | None:
        """Run it to its end. Returns what it raised, ``SystemExit`` and ``KeyboardInterrupt`` too."""
        sys.argv[:] = self._args
        if self._folder is not None:
            sys.path[0] = self._folder
        sys.modules["__main__"] = self.module  # pickle looks for its classes there, and so do processes that it starts
        try:
            exec(self._code, self.module.__dict__)
        except BaseException as error:
            error.__traceback__ = self._own_part(error.__traceback__)
            return error
        return None

    def _read_file(self, name: str) -> tuple[CodeType, str]:
        path = os.path.abspath(name)
        try:
            with io.open_code(path) as file:
                source = file.read()
        except OSError as error:
            raise ReportError(f"{name} cannot be read: {error.strerror}") from error
        self.module.__dict__.update(__spec__=None, __package__=None)
        return compile(source, path, "exec", dont_inherit=True), path

    def _read_module(self, name: str) -> tuple[CodeType, str]:
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except ImportError as error:
            raise ReportError(f"{name} cannot be imported: {error}") from error
        loader: Any = None if spec is None else spec.loader
        code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
        if spec is None or code is None:
            raise ReportError(f"no module named {name} that can be run")
        self.module.__dict__.update(__spec__=spec, __package__=spec.parent, __loader__=loader)
        return code, str(spec.origin)

    def _own_part(self, trace: TracebackType | None) -> TracebackType | None:
        """A traceback from the script's first frame on."""
        while trace is not None and trace.tb_frame.f_code is not self._code:
            trace = trace.tb_next
        return trace


def exit_status(error: BaseException | None) -> int:
    """What Python would exit with after ``error``, whose traceback or message is printed as Python would."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    try:
        sys.excepthook(type(error), error, error.__traceback__)  # the script may have one of its own
    except Exception:
        traceback.print_exception(error)
    return 130 if isinstance(error, KeyboardInterrupt) else 1
