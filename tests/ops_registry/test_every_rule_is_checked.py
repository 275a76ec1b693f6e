"""Every registered rule has a case that checks it, second derivatives included."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from support.checking import Case

import ops_registry

#: Rules of ops that need a GPU: ``test_copies.py`` has tests of theirs that run where there is one.
GPU_ONLY = {"cuda", "pin_memory"}

#: Rules that end at the first derivative, as in torch: that of a random gamma number is known by a kernel alone.
FIRST_ORDER_ONLY = {"_standard_gamma"}


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
    return {info.op for info in ops_registry.list_rules() if info.kind == "rule"}


def test_every_rule_has_a_case(cases: list[Case]) -> None:
    assert registered() - {c.rule for c in cases} == GPU_ONLY


def test_every_case_names_a_registered_rule(cases: list[Case]) -> None:
    assert {c.rule for c in cases} - {info.op for info in ops_registry.list_rules()} == set()


def test_every_rule_is_checked_to_second_order(cases: list[Case]) -> None:
    assert registered() - {c.rule for c in cases if c.second} == GPU_ONLY | FIRST_ORDER_ONLY
