"""Writes that replace every element: what was there before has no influence any more."""

import torch

from ops_registry.registry import backward

# The old value gets no gradient from any of these.


def nothing(grad):
    return None


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
):
    backward(_fill)(nothing)


@backward(torch.fill, wrt="value")
def fill_value(grad):
    return grad.sum()


@backward(torch.Tensor.copy_, wrt="src")
def copy_source(grad, src_device):
    return grad.to(src_device)
