"""Sums, products, quotients and powers of two tensors, or of a tensor and a number."""

import torch

from ops_registry.registry import backward
from ops_registry.rules.helpers import conj

# add: d(a + alpha b) = da + alpha db


@backward(torch.add, wrt="input")
def add_input(grad):
    return grad


@backward(torch.add, wrt="other")
def add_other(grad, alpha):
    return grad if alpha == 1 else grad * conj(alpha)


@backward(torch.mul, wrt="input")
def mul_input(grad, other):
    return grad * conj(other)


@backward(torch.mul, wrt="other")
def mul_other(grad, input):
    return grad * conj(input)


@backward(torch.tanh)
def tanh(grad, result):
    return grad * (1 - result * result).conj()


@backward(torch.sum)
def sum(grad, input_shape, dim, keepdim):
    from ops_registry.rules.helpers import restore_dims

    return restore_dims(grad, input_shape, dim, keepdim).expand(input_shape)
