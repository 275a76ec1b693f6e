"""Trigonometric and hyperbolic functions, and their inverses."""

import math

import torch

from ops_registry.declare import self_adjoint
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj
from ops_registry.shared.precision import wide


@backward(torch.sin, symmetric=True)
def sin(grad, input):
    return grad * conj(input.cos())


@backward(torch.cos, symmetric=True)
def cos(grad, input):
    return -(grad * conj(input.sin()))


@backward(torch.tan, symmetric=True)
def tan(grad, result):
    return grad * conj(result * result + 1)


@backward(torch.asin, symmetric=True)
def asin(grad, input):
    return grad * conj((1 - input * input).rsqrt())


@backward(torch.acos, symmetric=True)
def acos(grad, input):
    return -(grad * conj((1 - input * input).rsqrt()))


@backward(torch.atan, symmetric=True)
def atan(grad, input):
    return grad / conj(input * input + 1)


# atan2(y, x), with r = hypot(y, x): d/dy = x / r^2, d/dx = -y / r^2; 0 at the origin


@backward(torch.atan2, wrt=("input", "other"), symmetric=True)
def atan2(grad, input, other, needs):
    radius = torch.hypot(wide(input), wide(other))  # r^2 itself under- and overflows
    radius = torch.where(radius == 0, torch.inf, radius)
    scaled = grad / radius
    return scaled * (other / radius) if needs.input else None, scaled * (-input / radius) if needs.other else None


@backward(torch.sinh, symmetric=True)
def sinh(grad, input):
    return grad * conj(input.cosh())


@backward(torch.cosh, symmetric=True)
def cosh(grad, input):
    return grad * conj(input.sinh())


# t = tanh x: dt/dx = 1 - t^2


@backward(torch.tanh, symmetric=True)
def tanh(grad, result):
    return torch.ops.aten.tanh_backward(grad, result)


self_adjoint(torch.ops.aten.tanh_backward, wrt="grad_output")


@backward(torch.ops.aten.tanh_backward, wrt="output", symmetric=True, holomorphic=False)
def tanh_backward_output(grad, grad_output, output):
    return conj(grad) * grad_output * conj(output * -2)


@backward(torch.asinh, symmetric=True)
def asinh(grad, input):
    return grad * conj((input * input + 1).rsqrt())


@backward(torch.acosh, symmetric=True)
def acosh(grad, input):
    # Two roots: the root of the product has another branch cut, and is finite for x < -1 where acosh is not defined.
    return grad * conj((input - 1).rsqrt() * (input + 1).rsqrt())


@backward(torch.atanh, symmetric=True)
def atanh(grad, input):
    return grad / conj(1 - input * input)


@backward(torch.deg2rad, symmetric=True)
def deg2rad(grad):
    return grad * (math.pi / 180)


@backward(torch.rad2deg, symmetric=True)
def rad2deg(grad):
    return grad * (180 / math.pi)
