"""Rounding and signs. A function that is constant between its jumps has a zero gradient."""

import torch

from ops_registry.declare import passes_through, zero_gradient
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj

zero_gradient(torch.floor, torch.ceil, torch.round, torch.trunc, torch.sign)
passes_through(torch.frac)
zero_gradient(torch.copysign, torch.nextafter, wrt="other")
zero_gradient(torch.heaviside, wrt="input")


@backward(torch.sgn)
def sgn(grad, input, result):
    """For s = z/|z|: ``(g - s Re(conj(s) g)) / |z|``, the part of g across z, divided by the distance from 0; 0 at z = 0."""
    if not input.is_complex():
        return None
    zero = input == 0
    radial = (conj(result) * grad).real
    return torch.where(zero, 0, grad - result * radial) / torch.where(zero, 1, input).abs()


@backward(torch.copysign, wrt="input", symmetric=True)
def copysign_input(grad, input, result):
    return grad * input.sgn() * result.sgn()


@backward(torch.heaviside, wrt="values")
def heaviside_values(grad, input):
    return torch.where(input == 0, grad, 0)


@backward(torch.nan_to_num, symmetric=True)
def nan_to_num(grad, input):
    return torch.where(input.isfinite(), grad, 0)


@backward(torch.nextafter, wrt="input", symmetric=True)
def nextafter_input(grad, input, other):
    return torch.where(input == other, 0, grad)  # there the result is other, and stays so


@backward(torch.frexp, symmetric=True)
def frexp(grad, exponent):
    """mantissa = x / 2^exponent."""
    return grad / exponent.to(grad.dtype).exp2()
