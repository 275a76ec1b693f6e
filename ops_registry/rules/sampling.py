"""Random numbers. They are constants, as in torch, but for those of a gamma distribution, which move with its parameter."""

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward

# Neither what an in-place draw overwrites has a gradient, nor the parameters of the distribution.

# Before normal_, which takes its name for one of its spellings, and is not: its first argument is not the mean.
zero_gradient(torch.normal, wrt=("mean", "std"))
zero_gradient(torch.bernoulli, torch.poisson)
zero_gradient(torch.bernoulli, wrt="p")
zero_gradient(torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.random_, torch.Tensor.log_normal_)
zero_gradient(torch.Tensor.cauchy_, torch.Tensor.exponential_, torch.Tensor.geometric_)


@backward(torch._standard_gamma, symmetric=True)
def _standard_gamma(grad, input, result):
    """With F the distribution function and p its density, F(x(a), a) stays the same: dx/da = -(dF/da) / p. No second derivative."""
    return grad * torch._standard_gamma_grad(input, result)
