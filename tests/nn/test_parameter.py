"""``nn.Parameter``."""

from __future__ import annotations

import pytest
import torch

import nn
import tracer


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_modules_register_it() -> None:
    model = Scale()
    assert [name for name, _ in model.named_parameters()] == ["factor"]
    model(torch.tensor([3.0])).backward()
    assert model.factor.grad.tolist() == [3.0]


def test_it_is_a_tracked_leaf_and_a_parameter() -> None:
    p = nn.Parameter(torch.ones(2))
    assert type(p) is tracer.Tensor and p.is_leaf and p.requires_grad
    assert isinstance(p, nn.Parameter) and isinstance(p, torch.nn.Parameter)
    assert not isinstance(torch.ones(2), nn.Parameter) and not isinstance(tracer.tensor([1.0]), nn.Parameter)


def test_it_shares_storage_with_its_data() -> None:
    data = torch.ones(2)
    p = nn.Parameter(data)
    data[0] = 5
    assert p.tolist() == [5.0, 1.0]


def test_without_data_it_is_empty() -> None:
    assert nn.Parameter().shape == (0,)


def test_it_may_want_no_gradient() -> None:
    assert not nn.Parameter(torch.ones(2), requires_grad=False).requires_grad
    assert not nn.Parameter(torch.tensor([1, 2]), requires_grad=False).requires_grad


def test_integers_cannot_require_grad() -> None:
    with pytest.raises(tracer.GradientArgumentError):
        nn.Parameter(torch.tensor([1, 2]))


def test_torchs_parameter_of_a_tracked_tensor_is_tracked() -> None:
    p = torch.nn.Parameter(tracer.tensor([1.0]))
    assert type(p) is tracer.Tensor and p.requires_grad and isinstance(p, torch.nn.Parameter)
