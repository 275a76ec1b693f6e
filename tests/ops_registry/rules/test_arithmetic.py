"""Rules of ``ops_registry/rules/arithmetic.py``."""

from __future__ import annotations

import pytest
import torch

from support.checking import Case, case, rand, run_case

CASES = [
    case("add", torch.add, rand(3, 4), rand(3, 4, seed=1)),
    case("add", lambda a, b: torch.add(a, b, alpha=2.5), rand(3, 1), rand(4), label="alpha-broadcast"),
    case("mul", torch.mul, rand(3, 1), rand(4), label="broadcast"),
    case("mul", torch.mul, rand(3, dtype=torch.complex128), rand(3), label="complex-real"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)
