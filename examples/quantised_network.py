"""A network whose weights are -1, 0 or 1 and whose hidden units are -1 or 1, trained with the straight-through rule.

    python examples/quantised_network.py

``round`` and ``sign`` are flat, so their derivative is zero and nothing that stands before them learns. The straight-through rule passes the
gradient on as if they were not there: inside a range, beyond which the step has no effect. The network is ordinary torch code, and is
trained twice: without the rule, and with it.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import nn
import ops_registry
from ops_registry import packs

EPOCHS, BATCH = 20, 64


class TernaryLinear(torch.nn.Linear):
    """A linear layer that computes with its weights clamped and rounded to -1, 0 and 1."""

    def reset_parameters(self) -> None:
        torch.nn.init.uniform_(self.weight, -1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, torch.round(self.weight.clamp(-1, 1)))


class Network(torch.nn.Module):
    """Images ``(N, 64)`` to ten scores."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = TernaryLinear(64, width, bias=False)
        self.second = TernaryLinear(width, width, bias=False)
        self.third = TernaryLinear(width, 10, bias=False)
        self.norm1 = torch.nn.BatchNorm1d(width)
        self.norm2 = torch.nn.BatchNorm1d(width)
        self.norm3 = torch.nn.BatchNorm1d(10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.sign(self.norm1(self.first(images)))
        x = torch.sign(self.norm2(self.second(x)))
        return self.norm3(self.third(x))
