"""Copies of tensors that lie in memory as the originals do, or not at all as they do."""

from __future__ import annotations

import pytest
import torch

from tracer.checks.leaves import non_contiguous, twin


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(10.0)[1::2],
        torch.arange(3.0).expand(2, 3),
        torch.rand(2, 3).t(),
        torch.rand(2, dtype=torch.complex64).conj(),
        torch.empty(0, 3),
        torch.tensor(1.0),
    ],
    ids=["gaps", "expanded", "transposed", "conjugate", "empty", "0-d"],
)
def test_a_copy_lies_in_memory_as_the_original(tensor: torch.Tensor) -> None:
    copy = twin(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_a_tensor_with_gaps_has_the_same_values_and_is_not_contiguous() -> None:
    tensor = torch.rand(2, 3)
    found = non_contiguous(tensor)
    assert torch.equal(found, tensor)
    assert found.stride() == (2, 4)
