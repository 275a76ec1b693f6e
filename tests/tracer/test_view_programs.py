"""Random programs of views and in-place writes: as torch, or both raise. A long run: ``python tests/support/view_programs.py 20000``."""

from __future__ import annotations

import random

import pytest
from support.view_programs import compare, random_program


@pytest.mark.parametrize("seed", range(20))
def test_programs_of_views_and_writes_do_as_torch(seed: int) -> None:
    rng = random.Random(1000 + seed)
    outcomes = [compare(random_program(rng)) for _ in range(20)]
    assert "equal" in outcomes
