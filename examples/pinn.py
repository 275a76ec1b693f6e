"""A network that learns to solve a differential equation: u'' + u = 0 on [0, 2π], u(0) = 0, u'(0) = 1. The solution is sin x.

    python examples/pinn.py

No data is used. The loss is the mean square of the equation's residual at 48 points, in which the second derivative of the network by
its input stands, and of the two conditions at 0. It is then differentiated by the network's parameters: three orders in all.
"""

from __future__ import annotations

import argparse
import math

import torch

import nn
from tracer import func


class Solution(torch.nn.Module):
    """x -> u(x), numbers to numbers."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(1, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.reshape(1)).reshape(())


def loss_of(u: torch.nn.Module, points: torch.Tensor) -> torch.Tensor:
    """The mean square of u'' + u at ``points``, and how far u(0) and u'(0) are from 0 and 1."""
    slope = func.grad(u)
    curvature = func.grad(slope)
    residual = torch.vmap(lambda x: curvature(x) + u(x))(points)
    zero = torch.zeros(())
    return residual.pow(2).mean() + u(zero) ** 2 + (slope(zero) - 1) ** 2


def train(steps: int, seed: int = 0) -> tuple[float, float]:
    """Train a network; the last loss, and the largest error against sin on a grid."""
    torch.manual_seed(seed)
    u = nn.track(Solution())
    points = torch.linspace(0, 2 * math.pi, 48)
    optimizer = torch.optim.LBFGS(u.parameters(), max_iter=steps, history_size=20, line_search_fn="strong_wolfe")

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(u, points)
        loss.backward()
        return loss

    optimizer.step(evaluate)
    grid = torch.linspace(0, 2 * math.pi, 200)
    with torch.no_grad():
        error = (torch.vmap(u)(grid) - grid.sin()).abs().max()
    return loss_of(u, points).item(), error.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    loss, error = train(steps)
    print(f"after {steps} steps: loss {loss:.2e}, largest error against sin x on [0, 2π] {error:.2e}")
