"""Residual connections."""

from __future__ import annotations

from typing import Any

import torch

from nn.errors import ShapeError
from nn.module import Module


class Residual(Module):
    """``body(x) + shortcut(x)``; without ``shortcut`` it is ``x`` itself (He et al., 2016).

    Further arguments go to ``body``.
    """

    def __init__(self, body: torch.nn.Module, shortcut: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The shape that ``body`` gives. Raises ``ShapeError`` where ``shortcut`` gives another."""
        changed = self.body(input, *args, **kwargs)
        passed = input if self.shortcut is None else self.shortcut(input)
        if changed.shape != passed.shape:
            raise ShapeError(
                f"Residual: the body gives shape {tuple(changed.shape)} and the shortcut {tuple(passed.shape)} for an "
                f"input of shape {tuple(input.shape)}. A shortcut such as a 1x1 convolution can change the input's "
                f"shape."
            )
        return changed + passed
