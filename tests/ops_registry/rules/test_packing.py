"""Rules of ``ops_registry/rules/packing.py``. Networks of packed sequences are tested in ``test_recurrent.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import Case, case, rand, run_case
from torch.nn.utils.rnn import pad_sequence


def packing(lengths: list[int], batch_first: bool) -> Callable[..., Any]:
    return lambda x: torch._VF._pack_padded_sequence(x, torch.tensor(lengths), batch_first)[0]  # type: ignore[attr-defined]


def padding(sizes: list[int], batch_first: bool, total: int) -> Callable[..., Any]:
    def pad(data: torch.Tensor) -> Any:
        return torch._VF._pad_packed_sequence(data, torch.tensor(sizes), batch_first, 0.5, total)[0]  # type: ignore[attr-defined]

    return pad


CASES = [
    case("_pack_padded_sequence", packing([4, 2, 1], False), rand(4, 3, 2)),
    case("_pack_padded_sequence", packing([4, 2, 1], True), rand(3, 4, 2), label="batch-first"),
    case("_pack_padded_sequence", packing([3, 3, 1], False), rand(5, 3), label="longer-than-its-sequences"),
    case("_pack_padded_sequence", packing([3, 1], True), rand(2, 3, 2, 1, 2), label="rank-5"),
    case("_pad_packed_sequence", padding([3, 2, 1, 1], False, -1), rand(7, 2)),
    case("_pad_packed_sequence", padding([3, 2, 1, 1], True, -1), rand(7, 2), label="batch-first"),
    case("_pad_packed_sequence", padding([2, 2, 1], False, 5), rand(5), label="total-length"),
    case("_pad_packed_sequence", padding([2, 1], True, 4), rand(3, 2, 1, 2), label="rank-5"),
    case("pad_sequence", lambda *s: pad_sequence(s), rand(2, 3), rand(4, 3), rand(1, 3)),
    case("pad_sequence", lambda *s: pad_sequence(s, True, -1.0, "left"), rand(2), rand(4), label="left"),
    case("pad_sequence", lambda *s: pad_sequence(s), rand(1, 3), rand(3, 1), label="broadcast"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)
