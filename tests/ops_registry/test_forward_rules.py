"""Rules that run the forward themselves: their values are torch's to the bit, however the arguments lie in memory.

Such a rule calls another function than the user did, which may read its arguments by address where the one that it stands
for makes them contiguous first. The rules come from the registry, their calls from the cases of the rule tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.checking import Case, rand
from support.layouts import LAYOUTS
from support.rule_cases import FILES, cases_of

from ops_registry.registry import RULES
from tracer.checks.derivatives import Derivatives, differentiate, first_difference, to_the_bit
from tracer.checks.leaves import MakeLeaf, can_have_gradient, leaves_of, native_leaf, non_contiguous, tracked_leaf

FORWARD_RULES = sorted(name for name, rule in RULES.items() if rule.forward is not None)
EPS = 1e-5

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


def attention(x: torch.Tensor, *others: torch.Tensor, dropout: float = 0.0, mask: torch.Tensor | None = None) -> Any:
    return torch._C._nn.scaled_dot_product_attention(x, *(others or (x, x)), mask, dropout)


def bags(x: torch.Tensor, padding_idx: int) -> Any:
    indices, offsets = torch.tensor([0, 1, 2], device=x.device), torch.tensor([0, 2], device=x.device)
    return torch.embedding_bag(x, indices, offsets, False, 0, False, None, False, padding_idx)


def labels(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=x.device)


#: Calls that torch refuses before its kernel runs, on a tensor of shape (5, 3).
REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "rrelu, bounds the wrong way round": lambda x: torch.rrelu(x, 0.5, 0.1, True),
    "rrelu, a bound that is infinite": lambda x: torch.rrelu(x, 0.1, float("inf"), True),
    "rrelu, a bound that is nan": lambda x: torch.rrelu(x, float("nan"), 0.1, False),
    "embedding_bag, padding_idx above": lambda x: bags(x, 5),
    "embedding_bag, padding_idx below": lambda x: bags(x, -6),
    "group_norm, no channels": lambda x: torch.group_norm(x[0], 1),
    "group_norm, a weight of two dimensions": lambda x: torch.group_norm(x, 3, torch.ones_like(x[:1])),
    "group_norm, a bias of another size": lambda x: torch.group_norm(x, 3, None, torch.ones_like(x[:, 0])),
    "layer_norm, a weight of another size": lambda x: torch.layer_norm(x, [3], torch.ones_like(x[:, 0])),
    "instance_norm, no statistics": lambda x: torch.instance_norm(
        x[None], None, None, None, None, False, 0.1, EPS, True
    ),
    "nll_loss_nd, batch": lambda x: torch._C._nn.nll_loss_nd(x, labels(x, 4), None, 1, -100),
    "nll_loss_nd, no dimensions": lambda x: torch._C._nn.nll_loss_nd(x.sum(), labels(x), None, 1, -100),
    "nll_loss, images": lambda x: torch._C._nn.nll_loss(x[:, :, None, None], labels(x, 5, 1), None, 1, -100),
    "nll_loss2d, no images": lambda x: torch._C._nn.nll_loss2d(x, labels(x, 5), None, 1, -100),
    "nll_loss2d, one dimension": lambda x: torch._C._nn.nll_loss2d(x[:, :, None], labels(x, 5, 1), None, 1, -100),
    "attention, one dimension": lambda x: attention(x[0], x, x),
    "attention, two dtypes": lambda x: attention(x, x, x.float()),
    "attention, a mask of integers": lambda x: attention(x, mask=labels(x, 5, 5).int()),
    "attention, dropout above 1": lambda x: attention(x, dropout=1.5),
    "dropout above 1": lambda x: torch.dropout(x, 1.5, True),
    "alpha_dropout below 0": lambda x: torch.alpha_dropout(x, -1, True),
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_torch_refuses_is_refused_with_its_words(call: str, device: torch.device) -> None:
    said = []
    for leaf in (native_leaf, tracked_leaf):
        with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
            REFUSED[call](leaf(rand(5, 3)(device), True))
        said.append((raised.type, str(raised.value)))
    assert said[1] == said[0]
