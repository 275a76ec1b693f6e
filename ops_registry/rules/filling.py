"""Writes that replace every element: what was there before has no influence any more. Random numbers: constants, as in torch."""

import torch

from ops_registry.registry import backward

# The old value gets no gradient from any of these.


def nothing(grad):
    return None


# Before normal_, which takes its name for one of its spellings, and is not: its first argument is not the mean.
backward(torch.normal, wrt="mean")(nothing)
backward(torch.normal, wrt="std")(nothing)

for _fill in (
    torch.Tensor.zero_,
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.Tensor.random_,
    torch.Tensor.cauchy_,
    torch.Tensor.exponential_,
    torch.Tensor.geometric_,
    torch.Tensor.log_normal_,
    torch.fill,
    torch.Tensor.copy_,
    torch.bernoulli,
    torch.poisson,
):
    backward(_fill)(nothing)

backward(torch.bernoulli, wrt="p")(nothing)


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
