"""Changing a module once Python has loaded it, without loading it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class AfterImport(MetaPathFinder):
    """Calls ``act`` with each of the modules ``names``: at once if it is loaded, else as soon as it is."""

    def __init__(self, names: Collection[str], act: Callable[[ModuleType], None]) -> None:
        self.act = act
        self.waiting = {name for name in names if name not in sys.modules}
        for name in names:
            if name not in self.waiting:
                act(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What Python itself finds, with a loader that calls ``act`` after it."""
        if fullname not in self.waiting:
            return None
        self.waiting.discard(fullname)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.act(module)

            loader.exec_module = exec_module
        return spec
