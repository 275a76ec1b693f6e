"""Rules of ``ops_registry/rules/fake_quantize.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, plain, rand, run_case, values

import tracer

F32 = torch.float32
X = rand(3, 4, dtype=F32)


def observed(x: torch.Tensor, on: int = 1) -> torch.Tensor:
    """The op with running extremes of its own."""
    switch = torch.tensor([on], device=x.device)
    low, high = (torch.tensor(v, device=x.device) for v in (-1.0, 1.0))
    scale = torch.tensor([0.01], device=x.device)
    zero = torch.tensor([0], dtype=torch.int32, device=x.device)
    return torch.fused_moving_avg_obs_fake_quant(x, switch, switch, low, high, scale, zero, 0.1, -5, 5, -1)


def per_channel(x: torch.Tensor, axis: int = 1) -> torch.Tensor:
    n = x.shape[axis]
    scale = torch.linspace(0.1, 0.3, n, device=x.device)
    return torch.fake_quantize_per_channel_affine(x, scale, torch.zeros(n, device=x.device), axis, -5, 5)


def qparams(x: torch.Tensor) -> torch.Tensor:
    scale, zero = torch.tensor(0.1, device=x.device), torch.tensor(1, device=x.device)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, -5, 5)


learnable = torch._fake_quantize_learnable_per_tensor_affine
learnable_channels = torch._fake_quantize_learnable_per_channel_affine

# What passes over the rounding is no derivative: differences of the value say nothing. Times x, so that there is a second one.
CASES = [
    case(
        "fake_quantize_per_tensor_affine",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.2, 1, -5, 5) * x,
        X,
        differences=False,
    ),
    case("fake_quantize_per_tensor_affine", lambda x: qparams(x) * x, X, label="tensors", differences=False),
    case(
        "fake_quantize_per_tensor_affine",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.2, 1, -5, 5) * x,
        rand(0, 3, dtype=F32),
        label="empty",
        differences=False,
    ),
    case("fake_quantize_per_channel_affine", lambda x: per_channel(x) * x, X, differences=False),
    case(
        "fake_quantize_per_channel_affine",
        lambda x: per_channel(x, 2) * x,
        rand(2, 1, 3, 2, 2, dtype=F32),
        label="rank-5",
        differences=False,
    ),
    case("fused_moving_avg_obs_fake_quant", lambda x: observed(x) * x, X, differences=False),
    case("fused_moving_avg_obs_fake_quant", lambda x: observed(x, 0) * x, X, label="off", differences=False),
    # torch has no second derivative of these two.
    case(
        "_fake_quantize_learnable_per_tensor_affine",
        lambda x, s, z: learnable(x, s, z, -3, 3, 0.5),
        X,
        values([0.3], F32),
        values([1.2], F32),
        differences=False,
        second=False,
        rtol=1e-5,
        atol=1e-5,
    ),
    case(
        "_fake_quantize_learnable_per_tensor_affine",
        lambda x, s, z: learnable(x, s, z, -3, 3, 0.5),
        rand(3, 4),
        values([0.3]),
        values([1.2]),
        differences=False,
        second="differences",
        torch_agrees=False,  # it takes float32 alone
        label="second",
    ),
    *(
        case(
            "_fake_quantize_learnable_per_channel_affine",
            lambda x, s, z, axis=axis: learnable_channels(x, s, z, axis, -3, 3, 0.5),
            rand(*shape, dtype=F32),
            rand(3, low=0.1, high=0.5, dtype=F32),
            rand(3, dtype=F32),
            differences=False,
            second=False,
            rtol=1e-5,
            atol=1e-5,
            label=f"axis-{axis}-rank-{len(shape)}",
        )
        for axis, shape in ((0, (3, 4)), (1, (2, 3, 2)))
    ),
    case(
        "_fake_quantize_learnable_per_channel_affine",
        lambda x: learnable_channels(
            x, torch.full((3,), 0.2, device=x.device), torch.ones(3, device=x.device), 1, -3, 3
        ),
        rand(2, 3),
        differences=False,
        second="differences",
        torch_agrees=False,  # it takes a scale in float32 alone
        label="second",
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_clamped_value_has_no_gradient(device: torch.device) -> None:
    x = tracer.track(torch.tensor([-3.0, 0.24, 3.0], device=device), True)
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -5, 5).sum().backward()
    assert plain(x.grad).tolist() == [0.0, 1.0, 0.0]


def test_channels_of_one_element_have_a_gradient_each(device: torch.device) -> None:
    """torch 2.13 adds them all up and raises."""
    leaves = [tracer.track(make(device), True) for make in (rand(3, dtype=F32), rand(3, low=0.1, dtype=F32), X)]
    x, scale, zero = leaves[0], leaves[1], leaves[2][:, 0]
    by_channel = torch.autograd.grad(learnable_channels(x, scale, zero, 0, -3, 3, 0.5).sum(), [x, scale, leaves[2]])
    apart = torch.stack([learnable(x[i], scale[i : i + 1], zero[i : i + 1], -3, 3, 0.5) for i in range(3)])
    each = torch.autograd.grad(apart.sum(), [x, scale, leaves[2]])
    torch.testing.assert_close([plain(g) for g in by_channel], [plain(g) for g in each])


def test_observer_updates_its_running_extremes(device: torch.device) -> None:
    x = tracer.track(torch.tensor([-3.0, 2.0], device=device), True)
    on = torch.tensor([1], device=device)
    low, high = (torch.tensor(v, device=device) for v in (-1.0, 1.0))
    scale, zero = torch.tensor([0.01], device=device), torch.tensor([0], dtype=torch.int32, device=device)
    torch.fused_moving_avg_obs_fake_quant(x, on, on, low, high, scale, zero, 0.5, -5, 5, -1)
    assert (low.item(), high.item()) == (-2.0, 1.5)


def test_module_of_quantisation_aware_training_trains(device: torch.device) -> None:
    quantisation = pytest.importorskip("torch.ao.quantization")
    grads = []
    for leaf in (tracer.track(X(device), True), X(device).requires_grad_()):
        module = quantisation.FusedMovingAvgObsFakeQuantize().to(device)
        module(leaf).square().sum().backward()
        grads.append(plain(leaf.grad))
    torch.testing.assert_close(*grads)
