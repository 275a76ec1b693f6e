"""TorchScript on tracked tensors: torch's own backward runs, nothing is cut."""

from __future__ import annotations

import pytest
import torch
from support.leaves import leaf32

import tracer


@torch.jit.script
def scripted(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * x * scale


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_scripted_functions_are_one_opaque_call() -> None:
    x = leaf32(2.0)
    with tracer.Graph() as graph:
        y = scripted(x, 3.0)
    assert graph.counts() == {"torch:scripted": 1}
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [12.0]


def test_scripted_modules_are_not_cut() -> None:
    x = leaf32(0.5)
    torch.jit.script(Scripted())(x * 2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.tensor([1.0]).cos())


def test_a_second_derivative_raises_where_it_is_asked_for() -> None:
    # pytorch/pytorch#58509
    x = leaf32(1.0)
    (g,) = torch.autograd.grad(scripted(x * x, 2.0).sum(), x, create_graph=True)
    assert g.tolist() == [8.0]
    with pytest.raises(tracer.SecondDerivativeError, match="second derivative through torch:scripted"):
        torch.autograd.grad(g.sum(), x)
