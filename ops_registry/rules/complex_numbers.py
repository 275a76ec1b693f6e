"""Complex numbers and their parts. Gradients follow torch: ``g`` pairs with ``dz`` as ``Re(conj(g) dz)``."""

import torch

from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj as conjugate


@backward(torch.real, torch.resolve_conj, torch.resolve_neg, linear=True)
def real(grad):
    return grad


@backward(torch.imag, linear=True)
def imag(grad):
    return grad * 1j


@backward(torch.conj, torch.conj_physical, linear=True)
def conj(grad):
    return conjugate(grad)


@backward(torch.angle, symmetric=True)
def angle(grad, input):
    """Turning z by i z/|z|^2 changes the angle by 1; at 0, and on the real line, nothing flows."""
    if not input.is_complex():
        return None
    zero = input == 0
    radius = torch.where(zero, 1, input).abs()
    return grad * (input.sgn() / radius * 1j)


@backward(torch.view_as_real, linear=True)
def view_as_real(grad):
    return torch.view_as_complex(grad.contiguous())


@backward(torch.view_as_complex, linear=True)
def view_as_complex(grad):
    return torch.view_as_real(grad.resolve_conj())


# complex: x + i y


@backward(torch.complex, wrt="real", linear=[("real", "imag")])
def complex_real(grad):
    return grad.real


@backward(torch.complex, wrt="imag")
def complex_imag(grad):
    return grad.imag


# polar: r e^(i angle)


@backward(torch.polar, wrt=("abs", "angle"), linear=["abs"])
def polar(grad, abs, angle, needs):
    cos, sin = angle.cos(), angle.sin()
    return (
        grad.real * cos + grad.imag * sin if needs.abs else None,
        (grad.imag * cos - grad.real * sin) * abs if needs.angle else None,
    )
