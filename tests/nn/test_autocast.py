"""Autocast: values, gradients and dtypes as torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import nn
import tracer

NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "convolution": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        ),
        (4, 3, 8, 8),
    ),
    "transformer": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 6, 16)),
    "linear": (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Softmax(-1)
        ),
        (2, 6, 16),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_as_on_torch(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, data = make(), torch.randn(shape)
    twin = nn.track(copy.deepcopy(model))
    results = []
    for m in (twin, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = m(data)
            loss = (out.float() ** 2).mean()
        loss.backward()
        results.append((out.dtype, loss.item()))
    assert results[0] == results[1]
    for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": lambda a, b: a @ b,
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "cdist": torch.cdist,
    "mse_loss": lambda a, b: F.mse_loss(a.bfloat16(), b),
    "cat": lambda a, b: torch.cat([a.bfloat16(), b]),
}


@pytest.mark.parametrize("name", OPS)
def test_ops_have_torchs_dtypes(name: str) -> None:
    data = torch.linspace(-1, 1, 16).view(4, 4)
    results = []
    for a, b in (
        (tracer.tensor(data, requires_grad=True), tracer.tensor(data + 1, requires_grad=True)),
        (data.clone().requires_grad_(), (data + 1).requires_grad_()),
    ):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = OPS[name](a, b)
        out.float().sum().backward()
        results.append((out.dtype, a.grad, b.grad))
    assert results[0][0] == results[1][0]
    # One rounding of bfloat16: sums of two gradients are rounded in another order.
    torch.testing.assert_close(results[0][1:], results[1][1:], rtol=2**-8, atol=2**-8)
