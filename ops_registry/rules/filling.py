"""Writes that replace every element: what was there before has no influence any more. Random numbers: constants, as in torch."""

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward

# The old value gets no gradient from any of these.

# Before normal_, which takes its name for one of its spellings, and is not: its first argument is not the mean.
zero_gradient(torch.normal, wrt=("mean", "std"))
zero_gradient(torch.fill, torch.Tensor.zero_, torch.Tensor.copy_)
zero_gradient(torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.random_, torch.Tensor.log_normal_)
zero_gradient(torch.Tensor.cauchy_, torch.Tensor.exponential_, torch.Tensor.geometric_)
zero_gradient(torch.bernoulli, torch.poisson)
zero_gradient(torch.bernoulli, wrt="p")


@backward(torch.fill, wrt="value")
def fill_value(grad):
    return grad.sum()


@backward(torch.Tensor.copy_, wrt="src")
def copy_source(grad, src_device):
    return grad.to(src_device)


@backward(torch.Tensor.fill_diagonal_)
def fill_diagonal(grad, wrap):
    written = torch.zeros(grad.shape, dtype=torch.bool, device=grad.device).fill_diagonal_(True, wrap=wrap)
    return grad.masked_fill(written, 0)
