"""Exponentials and logarithms, of one number and of sums of two."""

import math

import torch

from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj
from ops_registry.shared.precision import wide

LN2, LN10 = math.log(2), math.log(10)


@backward(torch.exp, symmetric=True)
def exp(grad, result):
    return grad * conj(result)


@backward(torch.exp2, symmetric=True)
def exp2(grad, result):
    return grad * conj(result * LN2)


@backward(torch.expm1, symmetric=True)
def expm1(grad, result):
    return grad * conj(result + 1)


@backward(torch.log, symmetric=True)
def log(grad, input):
    return grad / conj(input)


@backward(torch.log2, symmetric=True)
def log2(grad, input):
    return grad / conj(input * LN2)


@backward(torch.log10, symmetric=True)
def log10(grad, input):
    return grad / conj(input * LN10)


@backward(torch.log1p, symmetric=True)
def log1p(grad, input):
    return grad / conj(input + 1)


# logaddexp: log(e^a + e^b), so d/da = e^a / (e^a + e^b) = sigmoid(a - b)


@backward(torch.logaddexp, wrt=("input", "other"), symmetric=True)
def logaddexp(grad, input, other, needs):
    lead, trail = _leads(input, other)
    return (
        grad * conj(lead.sigmoid()) if needs.input else None,
        grad * conj(trail.sigmoid()) if needs.other else None,
    )


# logaddexp2: log2(2^a + 2^b), so d/da = 2^a / (2^a + 2^b)


@backward(torch.logaddexp2, wrt=("input", "other"), symmetric=True)
def logaddexp2(grad, input, other, needs):
    lead, trail = _leads(input, other)
    return (
        grad * torch.sigmoid(lead * LN2) if needs.input else None,
        grad * torch.sigmoid(trail * LN2) if needs.other else None,
    )


def _leads(one, two):
    """How far each is ahead of the other; where both are -inf, -inf: neither has a share in a sum of nothing."""
    difference = one - two
    nothing = (one == -math.inf) & (two == -math.inf)
    return torch.where(nothing, -math.inf, difference), torch.where(nothing, -math.inf, -difference)


# xlogy: x log y, 0 where x is 0


@backward(torch.xlogy, wrt="input", symmetric=True)
def xlogy_input(grad, input, other):
    nothing = (input == 0) & (other <= 0)
    return torch.where(nothing, 0, torch.xlogy(grad, other))


@backward(torch.xlogy, wrt="other", symmetric=True)
def xlogy_other(grad, input, other):
    return grad * input / other


# ldexp: x 2^n


@backward(torch.ldexp, wrt="input", symmetric=True)
def ldexp_input(grad, other):
    return grad * conj(torch.pow(2.0, wide(other)))


@backward(torch.ldexp, wrt="other", symmetric=True)
def ldexp_other(grad, result):
    return grad * conj(wide(result) * LN2)
