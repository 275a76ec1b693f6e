"""A small model, the same at every making."""

from __future__ import annotations

import torch


class Model(torch.nn.Module):
    """One layer and tanh, which TorchScript takes too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()
