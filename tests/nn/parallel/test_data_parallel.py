"""``DistributedDataParallel`` of tracked parameters: torch's numbers to the bit, or an error that names the cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from support.once import once_for_all_workers
from support.parallel_checks import JOINED, differences, differences_of_four, unused_in_one
from support.parallel_compiled import PROGRAMS as COMPILED
from support.parallel_compiled import Program as OfSteps
from support.parallel_hooks import HOOKED
from support.parallel_training import OF_FOUR, SAME, Program
from support.processes import in_processes


def two_processes() -> list[dict[str, Any]]:
    return in_processes(differences, 2)


def four_processes() -> list[dict[str, str]]:
    return in_processes(differences_of_four, 4)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return once_for_all_workers(tmp_path_factory, two_processes)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return once_for_all_workers(tmp_path_factory, four_processes)


@pytest.mark.parametrize("program", [*SAME, *HOOKED])
def test_two_processes_get_what_torchs_wrapper_gives_to_the_bit(two: list[dict[str, Any]], program: Program) -> None:
    assert [rank[program.__name__] for rank in two] == ["", ""]


@pytest.mark.parametrize("program", OF_FOUR)
def test_four_processes_get_what_torchs_wrapper_gives_to_the_bit(four: list[dict[str, str]], program: Program) -> None:
    assert [rank[program.__name__] for rank in four] == ["", "", "", ""]


@pytest.mark.parametrize("program", COMPILED)
def test_compiled_steps_get_what_eager_ones_get_to_the_bit(two: list[dict[str, Any]], program: OfSteps) -> None:
    assert [rank[program.__name__] for rank in two] == ["", ""]


@pytest.mark.parametrize("program", JOINED)
def test_two_processes_are_as_good_as_one_on_the_joined_batch(two: list[dict[str, Any]], program: Program) -> None:
    assert max(rank[program.__name__] for rank in two) < 1e-6


def test_gradients_may_travel_in_bfloat16_by_gloo_too(two: list[dict[str, Any]]) -> None:
    assert [rank["compressed_to_bfloat16"] for rank in two] == [[True] * 6] * 2


def test_200_steps_of_the_demo_have_the_losses_of_one_process(two: list[dict[str, Any]]) -> None:
    found = two[0]["losses_of_the_demo"]
    assert found["worst"] < 1e-5 and found["last"] < found["first"] / 2


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("of_other_models", "rank 0 has weight: parameter of shape (2, 2)"),
        ("of_other_frozen_parameters", "requires_grad=True"),
        ("of_other_buffers", "rank 0 has none there, rank 1 has more: buffer of shape (3,)"),
        ("unused_everywhere", "second.weight, second.bias"),
    ],
)
def test_a_fault_is_told_in_every_process(two: list[dict[str, Any]], fault: str, named: str) -> None:
    assert all(named in rank[fault] for rank in two), [rank[fault] for rank in two]


def test_a_process_that_waits_in_vain_is_told_within_the_time_of_the_group() -> None:
    first, second = in_processes(unused_in_one, 2, seconds=5)
    assert "second.weight, second.bias" in first["text"] and "waited for the other processes" in second["text"]
    assert first["seconds"] < 3 and second["seconds"] < 15
    assert first["as before"] and second["as before"]
