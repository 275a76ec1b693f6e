"""Exponentials, logarithms, and the logistic function with its inverse."""

import math

import torch

from ops_registry.registry import backward
from ops_registry.rules.helpers import conj

LN2, LN10 = math.log(2), math.log(10)


@backward(torch.exp)
def exp(grad, result):
    return grad * conj(result)


@backward(torch.exp2)
def exp2(grad, result):
    return grad * conj(result * LN2)


@backward(torch.expm1)
def expm1(grad, result):
    return grad * conj(result + 1)


@backward(torch.log)
def log(grad, input):
    return grad / conj(input)


@backward(torch.log2)
def log2(grad, input):
    return grad / conj(input * LN2)


@backward(torch.log10)
def log10(grad, input):
    return grad / conj(input * LN10)


@backward(torch.log1p)
def log1p(grad, input):
    return grad / conj(input + 1)


# logaddexp: log(e^a + e^b), so d/da = e^a / (e^a + e^b) = sigmoid(a - b)


@backward(torch.logaddexp, wrt=("input", "other"))
def logaddexp(grad, input, other, needs):
    lead, trail = _leads(input, other)
    return grad * conj(lead.sigmoid()) if needs[0] else None, grad * conj(trail.sigmoid()) if needs[1] else None


# logaddexp2: log2(2^a + 2^b), so d/da = 2^a / (2^a + 2^b)


@backward(torch.logaddexp2, wrt=("input", "other"))
def logaddexp2(grad, input, other, needs):
    lead, trail = _leads(input, other)
    own = grad * torch.sigmoid(lead * LN2) if needs[0] else None
    return own, grad * torch.sigmoid(trail * LN2) if needs[1] else None


def _leads(one, two):
    """How far each is ahead of the other; where both are -inf, -inf: neither has a share in a sum of nothing."""
    difference = one - two
    nothing = (one == -math.inf) & (two == -math.inf)
    return torch.where(nothing, -math.inf, difference), torch.where(nothing, -math.inf, -difference)


# xlogy: x log y, 0 where x is 0


@backward(torch.xlogy, wrt="input")
def xlogy_input(grad, input, other):
    nothing = (input == 0) & (other <= 0)
    return torch.where(nothing, 0, torch.xlogy(grad, other))


@backward(torch.xlogy, wrt="other")
def xlogy_other(grad, input, other):
    return grad * input / other


# ldexp: x 2^n


@backward(torch.ldexp, wrt="input")
def ldexp_input(grad, other):
    return grad * conj(torch.pow(2.0, other))


@backward(torch.ldexp, wrt="other")
def ldexp_other(grad, result):
    return grad * conj(result * LN2)


# sigmoid: s = 1 / (1 + e^-x), so ds/dx = s (1 - s)


@backward(torch.sigmoid)
def sigmoid(grad, result):
    return torch.ops.aten.sigmoid_backward(grad, result)


@backward(torch.ops.aten.sigmoid_backward, wrt="grad_output")
def sigmoid_backward_grad_output(grad, output):
    return torch.ops.aten.sigmoid_backward(grad, conj(output))


@backward(torch.ops.aten.sigmoid_backward, wrt="output")
def sigmoid_backward_output(grad, grad_output, output):
    return conj(grad) * grad_output * conj(1 - output - output)


@backward(torch.logit)
def logit(grad, input, eps):
    """``1 / (x (1 - x))``; 0 where ``eps`` clamps, nan outside of [0, 1] where nothing does."""
    return torch.ops.aten.logit_backward(grad, input, eps)


@backward(torch.ops.aten.logit_backward, wrt="grad_output")
def logit_backward_grad_output(grad, input, eps):
    return torch.ops.aten.logit_backward(grad, input, eps)


@backward(torch.ops.aten.logit_backward, wrt="input")
def logit_backward_input(grad, grad_output, input, eps):
    """The derivative of ``1 / (x (1 - x))``, itself times ``(2 x - 1) / (x (1 - x))``."""
    slope = torch.ops.aten.logit_backward(grad * grad_output, input, eps)
    return torch.ops.aten.logit_backward(slope * (input + input - 1), input, eps)
