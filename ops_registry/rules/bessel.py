"""Bessel functions and Hermite polynomials. torch takes a derivative of the modified ones of the first kind (i0, i1) alone.

Each function of order 1 is, up to its sign, the slope of that of order 0; its own slope is given by the recurrence of the family.
"""

import math

import torch
import torch.special as S

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward
from ops_registry.rules.special import sinc


@backward(S.bessel_j0, symmetric=True)
def bessel_j0(grad, input):
    return -(grad * S.bessel_j1(input))


@backward(S.bessel_j1, symmetric=True)
def bessel_j1(grad, input, result):
    zero = input == 0
    return grad * torch.where(zero, 0.5, S.bessel_j0(input) - result / torch.where(zero, 1, input))


@backward(S.bessel_y0, symmetric=True)
def bessel_y0(grad, input):
    return -(grad * S.bessel_y1(input))


@backward(S.bessel_y1, symmetric=True)
def bessel_y1(grad, input, result):
    slope = S.bessel_y0(input) - result / input
    return grad * torch.where(input == 0, torch.inf, slope)


# Modified, of the first kind: I0' = I1, I1' = I0 - I1/x with 1/2 at 0; the scaled ones carry a factor e^-|x|


@backward(torch.i0, symmetric=True)
def i0(grad, input):
    return grad * S.i1(input)


@backward(S.i1, symmetric=True)
def i1(grad, input):
    zero, x = _off_zero(input)
    return grad * torch.where(zero, 0.5, torch.i0(x) - S.i1(x) / x)


@backward(S.i0e, symmetric=True)
def i0e(grad, input, result):
    return grad * (S.i1e(input) - input.sgn() * result)


@backward(S.i1e, symmetric=True)
def i1e(grad, input):
    zero, x = _off_zero(input)
    scaled = S.i1e(x)
    return grad * torch.where(zero, 0.5, S.i0e(x) - scaled * (x.sgn() + 1 / x))


def _off_zero(input):
    zero = input == 0
    return zero, torch.where(zero, 1, input)


# Modified, of the second kind


@backward(S.modified_bessel_k0, symmetric=True)
def modified_bessel_k0(grad, input):
    return -(grad * S.modified_bessel_k1(input))


@backward(S.modified_bessel_k1, symmetric=True)
def modified_bessel_k1(grad, input, result):
    return -(grad * (S.modified_bessel_k0(input) + result / input))


# Scaled: e^x K(x)


@backward(S.scaled_modified_bessel_k0, symmetric=True)
def scaled_modified_bessel_k0(grad, x, result):
    return grad * torch.where(x == 0, -torch.inf, result - S.scaled_modified_bessel_k1(x))


@backward(S.scaled_modified_bessel_k1, symmetric=True)
def scaled_modified_bessel_k1(grad, x, result):
    return grad * (result * (1 - 1 / x) - S.scaled_modified_bessel_k0(x))


@backward(S.spherical_bessel_j0, symmetric=True)
def spherical_bessel_j0(grad, x):
    return sinc(grad, x / math.pi) / math.pi  # sin(x) / x


# The slope of a Hermite polynomial is a multiple of the one before.


@backward(S.hermite_polynomial_h, wrt="x", symmetric=True)
def hermite_polynomial_h(grad, x, n):
    return grad * (S.hermite_polynomial_h(x, n - 1) * (2 * degree(n)))


@backward(S.hermite_polynomial_he, wrt="x", symmetric=True)
def hermite_polynomial_he(grad, x, n):
    return grad * (S.hermite_polynomial_he(x, n - 1) * degree(n))


zero_gradient(S.hermite_polynomial_h, S.hermite_polynomial_he, wrt="n")


def degree(n):
    """The degree as torch reads it: cut off to a whole number, no polynomial below 0."""
    return n.trunc().clamp_min(0) if isinstance(n, torch.Tensor) else max(0, math.trunc(n))
