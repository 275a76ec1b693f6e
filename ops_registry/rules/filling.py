"""Filling with one number: what was there before has no influence any more."""

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward

# The old value gets no gradient.

zero_gradient(torch.fill, torch.Tensor.zero_)


@backward(torch.fill, wrt="value")
def fill_value(grad):
    return grad.sum()


@backward(torch.Tensor.fill_diagonal_)
def fill_diagonal(grad, wrap):
    written = torch.zeros(grad.shape, dtype=torch.bool, device=grad.device).fill_diagonal_(True, wrap=wrap)
    return grad.masked_fill(written, 0)
