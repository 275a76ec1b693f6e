"""Rules that run the forward themselves: their values are torch's to the bit, however the arguments lie in memory.

Such a rule calls another function than the user did, which may read its arguments by address where the one that it stands
for makes them contiguous first. The rules come from the registry, their calls from the cases of the rule tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.checking import Case
from support.layouts import LAYOUTS
from support.rule_cases import FILES, cases_of

from ops_registry.registry import RULES
from tracer.checks.derivatives import Derivatives, differentiate, first_difference, to_the_bit
from tracer.checks.leaves import MakeLeaf, can_have_gradient, leaves_of, native_leaf, non_contiguous, tracked_leaf

FORWARD_RULES = sorted(name for name, rule in RULES.items() if rule.forward is not None)

#: Ops of which torch itself reads weight and bias by address, the memory of others if they are not contiguous. The truth is
#: what it gives for contiguous ones.
READ_BY_ADDRESS = {"native_group_norm"}


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    by_rule: dict[str, list[Case]] = {name: [] for name in FORWARD_RULES}
    for c in (c for file in FILES for c in cases_of(file)):
        if c.rule in by_rule:
            by_rule[c.rule].append(c)
    return by_rule


def arrangements(data: list[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The arguments as they are; then each alone in each layout; then all of them in it."""
    yield "as they are", data
    dense = [i for i, d in enumerate(data) if d.layout == torch.strided]
    for name, lay_out in LAYOUTS.items():
        for chosen in [*([i] for i in dense), *([dense] if len(dense) > 1 else [])]:
            yield f"{chosen} {name}", [lay_out(d) if i in chosen else d for i, d in enumerate(data)]


def run(c: Case, data: list[torch.Tensor], leaf: MakeLeaf, order: int = 1) -> Derivatives:
    wanted = [i for i, d in enumerate(data) if can_have_gradient(d)]
    return differentiate(lambda leaves: c.function(*leaves), leaves_of(data, wanted, leaf), wanted, order, leaf)


def values_alone(found: Derivatives) -> Derivatives:
    return Derivatives(found.outputs, found.requires_grad, [], [], found.arguments)


@pytest.mark.parametrize("rule", FORWARD_RULES)
def test_values_are_torchs_to_the_bit_in_every_layout_of_the_arguments(
    rule: str, cases: dict[str, list[Case]], device: torch.device
) -> None:
    compared, wrong = 0, []
    for c in cases[rule]:
        for name, data in arrangements([make(device) for make in c.inputs]):
            readable = [data[0], *(d.contiguous() for d in data[1:])] if rule in READ_BY_ADDRESS else data
            try:
                theirs = run(c, readable, native_leaf)
            except Exception:
                continue  # torch cannot differentiate this call
            ours = run(c, data, tracked_leaf)
            if not c.torch_agrees:
                ours, theirs = values_alone(ours), values_alone(theirs)
            values = to_the_bit if device.type == "cpu" else None
            found = first_difference(ours, theirs, lambda _, c=c: (c.rtol, c.atol), values)
            compared += 1
            if found is not None:
                wrong.append(f"{c}, {name}: {found}")
    assert compared, "torch refuses every call"
    assert wrong == []


@pytest.mark.parametrize("rule", FORWARD_RULES)
def test_second_derivatives_do_not_depend_on_the_layout_of_the_arguments(
    rule: str, cases: dict[str, list[Case]], device: torch.device
) -> None:
    for c in cases[rule]:
        data = [make(device) for make in c.inputs]
        if c.second is not True or not c.torch_agrees or any(d.layout != torch.strided for d in data):
            continue
        turned = [non_contiguous(d) for d in data]
        try:
            theirs = run(c, turned, native_leaf, order=2)
        except Exception:
            continue  # torch cannot differentiate this call
        found = first_difference(run(c, turned, tracked_leaf, order=2), theirs, lambda _, c=c: (c.rtol, c.atol))
        assert found is None, f"{c}: {found}"
