"""Trigonometric and hyperbolic functions, and their inverses."""

import math

import torch

from ops_registry.declare import self_adjoint
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj
from ops_registry.shared.masks import zeros_and_ones


@backward(torch.sin)
def sin(grad, input):
    return grad * conj(input.cos())


@backward(torch.cos)
def cos(grad, input):
    return -(grad * conj(input.sin()))


@backward(torch.tan)
def tan(grad, result):
    return grad * conj(result * result + 1)


@backward(torch.asin)
def asin(grad, input):
    return grad * conj((1 - input * input).rsqrt())


@backward(torch.acos)
def acos(grad, input):
    return -(grad * conj((1 - input * input).rsqrt()))


@backward(torch.atan)
def atan(grad, input):
    return grad / conj(input * input + 1)


# atan2(y, x), with r = hypot(y, x): d/dy = x / r^2, d/dx = -y / r^2; 0 at the origin


@backward(torch.atan2, wrt=("input", "other"))
def atan2(grad, input, other, needs):
    radius = torch.hypot(input, other)  # r^2 itself under- and overflows
    radius = torch.where(radius == 0, torch.inf, radius)
    scaled = grad / radius
    return scaled * (other / radius) if needs.input else None, scaled * (-input / radius) if needs.other else None


@backward(torch.sinh)
def sinh(grad, input):
    return grad * conj(input.cosh())


@backward(torch.cosh)
def cosh(grad, input):
    return grad * conj(input.sinh())


# t = tanh x: dt/dx = 1 - t^2


@backward(torch.tanh)
def tanh(grad, result):
    return torch.ops.aten.tanh_backward(grad, result)


self_adjoint(torch.ops.aten.tanh_backward, wrt="grad_output")


@backward(torch.ops.aten.tanh_backward, wrt="output")
def tanh_backward_output(grad, grad_output, output):
    return conj(grad) * grad_output * conj(output * -2)


@backward(torch.asinh)
def asinh(grad, input):
    return grad * conj((input * input + 1).rsqrt())


@backward(torch.acosh)
def acosh(grad, input):
    # Two roots: the root of the product has another branch cut, and is finite for x < -1 where acosh is not defined.
    return grad * conj((input - 1).rsqrt() * (input + 1).rsqrt())


@backward(torch.atanh)
def atanh(grad, input):
    return grad / conj(1 - input * input)


#: Coefficients of d/dt sin(t)/t = t (c0 + c1 t^2 + ...), from sin(t)/t = sum of (-1)^k t^2k / (2k+1)!
_SINC_SLOPE = tuple((-1) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, 11))


@backward(torch.sinc)
def sinc(grad, input):
    """``d/dx sin(t)/t = pi (cos(t) - sin(t)/t) / t`` with ``t = pi x``.

    Near 0 the two terms cancel, and at 0 every derivative of the quotient is nan: the power series takes its place.
    """
    t = input * math.pi
    near = t.abs() < 1
    if t.is_complex():
        small, large = torch.where(near, t, 0), torch.where(near, 1, t)
    else:
        small, large = t.clamp(-1, 1), torch.copysign(t.abs().clamp_min(1), t)
    squared = small * small
    significant = [c for c in reversed(_SINC_SLOPE) if abs(c) > torch.finfo(t.dtype).eps / 100]
    series, *coefficients = torch.tensor(significant, dtype=t.dtype, device=t.device)
    for coefficient in coefficients:
        series = torch.addcmul(coefficient, series, squared)
    slope = select_finite(near, small * series, (large.cos() - large.sin() / large) / large)
    return grad * conj(slope * math.pi)


def select_finite(mask, chosen, other):
    """``where(mask, chosen, other)`` for two tensors that are finite everywhere: weights of 0 and 1 select much faster."""
    return torch.lerp(other, chosen, zeros_and_ones(mask, chosen.dtype))


@backward(torch.deg2rad)
def deg2rad(grad):
    return grad * (math.pi / 180)


@backward(torch.rad2deg)
def rad2deg(grad):
    return grad * (180 / math.pi)
