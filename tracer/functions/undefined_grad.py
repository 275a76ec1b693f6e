"""Gradients that are not there: taking the gradient of a result away, as checks of gradients do, ours and torch's own."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.scopes import use
from ops_registry.torch_private import UndefinedGrad
from tracer.tracked_tensor import Tensor


def _nothing_flows(grad: Any) -> None:
    return None


def without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, through a call that sends nothing back: what comes before it sees a gradient that is not there."""
    with use({torch.clone: _nothing_flows}):
        return tensor.clone()


class TrackedUndefinedGrad:
    """The identity with which torch's own ``gradcheck`` takes a result's gradient away; torch's works on its own tensors only."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return without_gradient(tensor) if isinstance(tensor, Tensor) else UndefinedGrad()(tensor)
