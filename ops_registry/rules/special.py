"""Error functions, gamma functions, zeta, entropies and sinc. Bessel functions have a file of their own."""

import math

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj
from ops_registry.shared.masks import select_finite
from ops_registry.shared.precision import wide

TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)
SQRT_TWO_PI = math.sqrt(2 * math.pi)


@backward(torch.erf, symmetric=True)
def erf(grad, input):
    return grad * ((input * -input).exp() * TWO_OVER_SQRT_PI)


@backward(torch.erfc, symmetric=True)
def erfc(grad, input):
    return grad * ((input * -input).exp() * -TWO_OVER_SQRT_PI)


@backward(torch.erfinv, symmetric=True)
def erfinv(grad, result):
    return grad * ((result * result).exp() / TWO_OVER_SQRT_PI)


@backward(torch.special.erfcx, symmetric=True)
def erfcx(grad, input, result):
    """``exp(x^2) erfc(x)``."""
    return grad * (input * result * 2 - TWO_OVER_SQRT_PI)


@backward(torch.special.ndtr, symmetric=True)
def ndtr(grad, input):
    return grad * ((input * input * -0.5).exp() / SQRT_TWO_PI)


@backward(torch.special.log_ndtr, symmetric=True)
def log_ndtr(grad, input):
    """density / distribution = sqrt(2/pi) / erfcx(-x / sqrt 2), which stays finite far out to the left."""
    return grad / torch.special.erfcx(input * -math.sqrt(0.5)) * math.sqrt(2 / math.pi)


@backward(torch.special.ndtri, symmetric=True)
def ndtri(grad, result):
    return grad * ((result * result * 0.5).exp() * SQRT_TWO_PI)


@backward(torch.lgamma, symmetric=True)
def lgamma(grad, input):
    return grad * torch.digamma(input)


@backward(torch.mvlgamma, symmetric=True)
def mvlgamma(grad, input, p):
    """The sum of lgamma(x - j/2) over j < p, and a constant."""
    input = wide(input)
    slope = torch.digamma(input)
    for j in range(1, p):
        slope = slope + torch.digamma(input - j / 2)
    return grad * slope


@backward(torch.digamma, symmetric=True)
def digamma(grad, input):
    return grad * torch.polygamma(1, input)


@backward(torch.polygamma, wrt="input", symmetric=True)
def polygamma(grad, n, input):
    return grad * torch.polygamma(n + 1, input)


# igamma(a, x), the integral of t^(a-1) e^-t / Gamma(a) from 0 to x; igammac is 1 - igamma


@backward(torch.igamma, wrt="other", symmetric=True)
def igamma_other(grad, input, other):
    return grad * _gamma_density(input, other)


@backward(torch.igammac, wrt="other", symmetric=True)
def igammac_other(grad, input, other):
    return -(grad * _gamma_density(input, other))


def _gamma_density(a, x):
    return (torch.xlogy(a - 1, x) - x - torch.lgamma(a)).exp()


@backward(torch.igamma, torch.igammac, wrt="input")
def igamma_input(grad):
    raise UnsupportedCallError(
        "igamma and igammac have no derivative in their first argument here, and none in torch. Detach it."
    )


# zeta(s, q), the sum of (k + q)^-s


@backward(torch.special.zeta, wrt="other", symmetric=True)
def zeta_other(grad, input, other):
    return grad * torch.special.zeta(input + 1, other) * -input


@backward(torch.special.zeta, wrt="input")
def zeta_input(grad):
    raise UnsupportedCallError(
        "special.zeta has no derivative in its first argument here, and none in torch. Detach it."
    )


@backward(torch.special.entr, symmetric=True)
def entr(grad, input):
    """``-x log x``."""
    return grad * (-1 - input.log())


# xlog1py: x log(1 + y), 0 where x is 0


@backward(torch.special.xlog1py, wrt="input", symmetric=True)
def xlog1py_input(grad, input, other):
    undefined = (input == 0) & (other <= -1)
    return torch.where(undefined, 0, torch.special.xlog1py(grad, other))


@backward(torch.special.xlog1py, wrt="other", symmetric=True)
def xlog1py_other(grad, input, other):
    return grad * input / (other + 1)


# sinc: sin(pi x) / (pi x)

#: Coefficients of d/dt sin(t)/t = t (c0 + c1 t^2 + ...), from sin(t)/t = sum of (-1)^k t^2k / (2k+1)!
_SINC_SLOPE = tuple((-1) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, 11))


@backward(torch.sinc, symmetric=True)
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
