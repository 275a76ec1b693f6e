"""Every registered rule has a case that checks it, second derivatives included."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import ops_registry
from support.checking import Case

#: Rules whose ops torch itself cannot differentiate twice, and whose second derivative is zero or refused for the reason given.
NO_SECOND_DERIVATIVE: dict[str, str] = {}


def all_cases() -> list[Case]:
    found: list[Case] = []
    for path in sorted((Path(__file__).parent / "rules").glob("test_*.py")):
        name = f"every_rule_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found.extend(getattr(module, "CASES", []))
    return found


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return all_cases()


def registered() -> set[str]:
    return {info.op for info in ops_registry.rules() if info.kind == "rule"}


def test_every_rule_has_a_case(cases: list[Case]) -> None:
    assert registered() - {c.rule for c in cases} == set()


def test_every_case_names_a_registered_rule(cases: list[Case]) -> None:
    assert {c.rule for c in cases} - {info.op for info in ops_registry.rules()} == set()


def test_every_rule_is_checked_to_second_order(cases: list[Case]) -> None:
    assert registered() - {c.rule for c in cases if c.second} == set(NO_SECOND_DERIVATIVE)
