"""Activations that torch does not have."""

from __future__ import annotations

from typing import Any

import torch

from nn.module import Module
from nn.parameter import Parameter


class Swish(Module):
    """``x * sigmoid(beta * x)``, elementwise, with a learnable scalar ``beta`` (Ramachandran et al., 2017).

    Any shape. ``beta = 1`` is ``torch.nn.SiLU``, 0 half the identity, infinity relu.
    """

    def __init__(self, beta: float = 1.0, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.init = beta
        # Without dimensions, so that it follows the dtype of the input.
        self.beta = Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """``beta`` as it was given."""
        torch.nn.init.constant_(self.beta, self.init)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Any shape to the same shape."""
        return input * torch.sigmoid(self.beta * input)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"beta={self.init}"
