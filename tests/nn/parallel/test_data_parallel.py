"""``DistributedDataParallel`` of tracked parameters: torch's numbers to the bit, or an error that names the cause."""

from __future__ import annotations

import pytest
import torch.distributed as dist

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from support.parallel_training import OF_FOUR, SAME, Program, differences, differences_of_four
from support.processes import in_processes


@pytest.fixture(scope="module")
def two() -> list[dict[str, str]]:
    return in_processes(differences, 2)


@pytest.fixture(scope="module")
def four() -> list[dict[str, str]]:
    return in_processes(differences_of_four, 4)


@pytest.mark.parametrize("program", SAME)
def test_two_processes_get_what_torchs_wrapper_gives_to_the_bit(two: list[dict[str, str]], program: Program) -> None:
    assert [rank[program.__name__] for rank in two] == ["", ""]


@pytest.mark.parametrize("program", OF_FOUR)
def test_four_processes_get_what_torchs_wrapper_gives_to_the_bit(four: list[dict[str, str]], program: Program) -> None:
    assert [rank[program.__name__] for rank in four] == ["", "", "", ""]
