"""Powers and roots: ``pow`` with its corners at 0, ``square``, ``sqrt``, ``rsqrt``, ``hypot``."""

import cmath
import math

import torch

from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj
from ops_registry.shared.recorded import recorded


@backward(torch.square, symmetric=True)
def square(grad, input):
    return grad * conj(input + input)  # a sum, not 2*x: a number as operand doubles the cost


@backward(torch.sqrt, symmetric=True)
def sqrt(grad, result):
    return grad / conj(result + result)


@backward(torch.rsqrt, symmetric=True)
def rsqrt(grad, result):
    return grad * conj(result.pow(3)) * -0.5


# pow: x^p


@backward(torch.pow, wrt="input", symmetric=True)
def pow_input(grad, input, exponent):
    """``p x^(p-1)``; 0 for p = 0, also at x = 0 where the factors are 0 and infinite."""
    if not isinstance(exponent, torch.Tensor):
        if exponent == 0:
            return None
        if exponent == 2:
            return square(grad, input)
        return grad * conj(input.pow(exponent - 1) * exponent)
    corner = (exponent == 0) & (input == 0)
    # The base is moved off 0 there as well: otherwise the branch not taken would bring 0 * inf into the second derivative.
    slope = exponent * torch.where(corner, 1, input).pow(exponent - 1)
    return torch.where(corner, 0, grad * conj(slope))


@backward(torch.pow, wrt="exponent", symmetric=True)
def pow_exponent(grad, input, exponent, result):
    """``x^p log x``; 0 at x = 0 for p >= 0, where ``x^p log x`` tends to 0 (by convention also for p = 0)."""
    if not isinstance(input, torch.Tensor) and input != 0:
        return grad * conj(result * _log(input, result.is_complex()))
    corner = (input == 0) & _tends_to_zero(exponent)
    base = torch.where(corner, 1, input).to(grad.dtype)  # integers would have a single precision logarithm
    return torch.where(corner, 0, grad * conj(result * base.log()))


def _tends_to_zero(exponent):
    if isinstance(exponent, complex) or (isinstance(exponent, torch.Tensor) and exponent.is_complex()):
        return (exponent.real > 0) | (exponent == 0)
    return exponent >= 0


def _log(number, is_complex):
    if is_complex or isinstance(number, complex):
        return cmath.log(number)
    return math.log(number) if number > 0 else math.nan


# float_power: pow in double precision


@backward(torch.float_power, wrt="input", symmetric=True)
def float_power_input(grad, input, exponent):
    return pow_input(grad, _wide(input, grad), _wide(exponent, grad))


@backward(torch.float_power, wrt="exponent", symmetric=True)
def float_power_exponent(grad, input, exponent, result):
    return pow_exponent(grad, _wide(input, grad), _wide(exponent, grad), result)


def _wide(value, like):
    return value.to(like.dtype) if isinstance(value, torch.Tensor) else value


# hypot: r = sqrt(x^2 + y^2), so dr/dx = x / r; 0 at the origin, the slope of least norm there


@backward(torch.hypot, wrt="input", symmetric=True)
def hypot_input(grad, input, result):
    return grad * (input / _radius(result))


@backward(torch.hypot, wrt="other", symmetric=True)
def hypot_other(grad, other, result):
    return grad * (other / _radius(result))


def _radius(result):
    """``result`` without zeros. A division by infinity is 0 in every order; one of 0 by the smallest number is 0, too, and cheaper."""
    if recorded():
        return torch.where(result == 0, torch.inf, result)
    limits = torch.finfo(result.dtype)
    return result.clamp_min(limits.tiny * limits.eps)
