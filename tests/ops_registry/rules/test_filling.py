"""Rules of ``ops_registry/rules/filling.py``: what was there before has no influence any more."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, rand, run_case
from support.overwriting import filled

import tracer

CASES = [
    case("zero_", filled("zero_"), rand(3, 4)),
    case("fill", filled("fill_", 3.0), rand(3, 4), label="number"),
    case("fill", lambda x, v: (x * 2).fill_(v * v) * x, rand(3, 4), rand(), label="tensor"),
    case("fill", lambda x, v: (x * 2).fill_(v) * x, rand(0, 4), rand(), label="empty"),
    case("fill", lambda x, v: torch.fill(x * 2, v) * x, rand(3, 4), rand(), label="out-of-place"),
    case("zero_", lambda x: torch.zero_(x * 2) * x, rand(3, 4), label="function"),
    case("fill_diagonal_", filled("fill_diagonal_", 3.0), rand(3, 4)),
    case("fill_diagonal_", filled("fill_diagonal_", 3.0, True), rand(7, 2), label="wrap"),
    case("fill_diagonal_", lambda x: (x * 2).fill_diagonal_(1.0, wrap=True) * x, rand(7, 2), label="keyword"),
    case("fill_diagonal_", filled("fill_diagonal_", 3.0), rand(2, 2, 2), label="rank-3"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_initialisers_of_torch_write_leaves() -> None:
    x = tracer.tensor(torch.zeros(20, 20), requires_grad=True)
    torch.nn.init.kaiming_uniform_(x)
    torch.nn.init.constant_(x, 2.0)
    assert x.is_leaf and x.requires_grad and (x == 2).all()
