"""``nn.Swish``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.checking import plain
from support.training import accuracy, digits, fit

import nn
import tracer


def test_with_beta_one_it_is_silu() -> None:
    data = torch.linspace(-4, 4, 24, dtype=torch.float64).view(2, 3, 4)
    x, native = tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()
    y, expected = nn.Swish()(x), F.silu(native)
    torch.testing.assert_close(plain(y), expected.detach())
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, native.grad)


@pytest.mark.parametrize("beta", [0.0, 0.7, -2.0])
def test_gradients_are_those_of_the_formula(beta: float) -> None:
    data = torch.linspace(-3, 3, 12, dtype=torch.float64)
    swish = nn.Swish(beta, dtype=torch.float64)
    x = tracer.tensor(data, requires_grad=True)
    swish(x).sum().backward()
    gate = torch.sigmoid(beta * data)
    torch.testing.assert_close(x.grad, gate + beta * data * gate * (1 - gate))
    torch.testing.assert_close(swish.beta.grad, (data**2 * gate * (1 - gate)).sum())


def test_beta_is_a_tracked_parameter_that_resets() -> None:
    swish = nn.Swish(1.5)
    assert type(swish.beta) is tracer.Tensor and list(swish.state_dict()) == ["beta"] and swish.beta.item() == 1.5
    nn.init.zeros_(swish.beta)
    swish.reset_parameters()
    assert swish.beta.item() == 1.5 and repr(swish) == "Swish(beta=1.5)"


def test_the_dtype_is_that_of_the_input() -> None:
    assert nn.Swish()(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_it_trains_on_digits_to_95_percent_and_beta_moves() -> None:
    images, labels, test_images, test_labels = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Swish(), nn.Linear(64, 10))
    fit(model, images, labels, epochs=12)
    assert accuracy(model, test_images, test_labels) >= 0.95
    assert abs(model[2].beta.item() - 1) > 0.05
