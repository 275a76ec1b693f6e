"""Random numbers that depend on the parameters of their distribution."""

import torch

from ops_registry.registry import backward


@backward(torch._standard_gamma)
def _standard_gamma(grad, input, result):
    """With F the distribution function and p its density, F(x(a), a) stays the same: dx/da = -(dF/da) / p. No second derivative."""
    return grad * torch._standard_gamma_grad(input, result)
