"""The ``CASES`` of the rule tests, for tests that go through all of them."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

from support.checking import Case

#: The test files of ``ops_registry/rules/``, by name.
FILES = {path.stem: path for path in sorted((Path(__file__).parents[1] / "ops_registry" / "rules").glob("test_*.py"))}


@cache
def cases_of(file: str) -> tuple[Case, ...]:
    """The cases that one file lists."""
    name = f"rule_cases_{file}"
    spec = importlib.util.spec_from_file_location(name, FILES[file])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return tuple(getattr(module, "CASES", ()))
