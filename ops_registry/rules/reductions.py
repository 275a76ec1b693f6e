"""Sums, means and products over all elements or along dimensions."""

import torch

from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj
from ops_registry.shared.dimensions import reduced_count, restore_dims, spread
from ops_registry.shared.masks import zeros_and_ones
from ops_registry.shared.precision import wide
from ops_registry.shared.products import divides_well, exclusive_cumprod
from ops_registry.shared.recorded import recorded


@backward(torch.sum, linear=True)
def sum(grad, input_shape, dim, keepdim):
    return spread(grad, input_shape, dim, keepdim)


@backward(torch.Tensor.sum_to_size, linear=True)
def sum_to_size(grad, input_shape):
    return grad.expand(input_shape)


@backward(torch.nansum)
def nansum(grad, input, input_shape, dim, keepdim):
    return spread(grad, input_shape, dim, keepdim) * zeros_and_ones(input == input)


@backward(torch.mean, linear=True)
def mean(grad, input_shape, dim, keepdim):
    count = reduced_count(input_shape, dim)
    return spread(grad / count if count else grad, input_shape, dim, keepdim)


@decomposition(torch.nanmean)
def nanmean(input, dim, keepdim, dtype):
    return torch.nansum(input, dim, keepdim, dtype=dtype) / (input == input).sum(dim, keepdim)


@backward(torch.prod)
def prod(grad, input, input_shape, result, dim, keepdim, dtype):
    # The derivative of each factor is the product of the others: those before it times those after it.
    # Without a division it is right at zeros, in every order.
    grad, factors = wide(grad), wide(input if dtype is None else input.to(dtype))
    if not recorded() and divides_well(result):
        return restore_dims(grad * conj(result), input_shape, dim, keepdim or dim is None) / conj(factors)
    if dim is None or not input_shape:
        factors = factors.reshape(-1)
        others = exclusive_cumprod(factors, 0) * exclusive_cumprod(factors.flip(0), 0).flip(0)
        return grad * conj(others.reshape(input_shape))
    others = exclusive_cumprod(factors, dim) * exclusive_cumprod(factors.flip(dim), dim).flip(dim)
    return restore_dims(grad, input_shape, dim, keepdim) * conj(others)
