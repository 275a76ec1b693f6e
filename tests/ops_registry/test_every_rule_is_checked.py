"""Every registered rule has a case that checks it, second derivatives included."""

from __future__ import annotations

import pytest
from support.checking import Case
from support.rule_cases import FILES, cases_of

import ops_registry

#: Rules of ops that need a GPU: ``test_copies.py`` has tests of theirs that run where there is one.
GPU_ONLY = {"cuda", "pin_memory"}

#: Rules that end at the first derivative, as in torch: that of a random gamma number is known by a kernel alone.
FIRST_ORDER_ONLY = {"_standard_gamma"}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case for file in FILES for case in cases_of(file)]


def registered() -> set[str]:
    return {info.op for info in ops_registry.list_rules() if info.kind == "rule"}


def test_every_rule_has_a_case(cases: list[Case]) -> None:
    assert registered() - {c.rule for c in cases} == GPU_ONLY


def test_every_case_names_a_registered_rule(cases: list[Case]) -> None:
    assert {c.rule for c in cases} - {info.op for info in ops_registry.list_rules()} == set()


def test_every_rule_is_checked_to_second_order(cases: list[Case]) -> None:
    assert registered() - {c.rule for c in cases if c.second} == GPU_ONLY | FIRST_ORDER_ONLY
