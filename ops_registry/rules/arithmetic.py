"""Sums, products and quotients of two tensors, or of a tensor and a number; the absolute value."""

import torch

from ops_registry.declare import passes_through, zero_gradient
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj, scaled
from ops_registry.shared.precision import wide

# add: a + alpha b

passes_through(torch.add, wrt="input")


@backward(torch.add, wrt="other", symmetric=True)
def add_other(grad, alpha):
    return grad if alpha == 1 else grad * conj(alpha)


# sub: a - alpha b

passes_through(torch.sub, wrt="input")


@backward(torch.sub, wrt="other", symmetric=True)
def sub_other(grad, alpha):
    return -grad if alpha == 1 else grad * -conj(alpha)


# rsub: b - alpha a


@backward(torch.rsub, wrt="input", symmetric=True)
def rsub_input(grad, alpha):
    return -grad if alpha == 1 else grad * -conj(alpha)


passes_through(torch.rsub, wrt="other")


@backward(torch.mul, wrt="input", symmetric=True)
def mul_input(grad, other):
    return grad * conj(other)


@backward(torch.mul, wrt="other", symmetric=True)
def mul_other(grad, input):
    return grad * conj(input)


# div: a / b. Rounded to whole numbers, a quotient is constant between its jumps.


@backward(torch.div, wrt="input", symmetric=True)
def div_input(grad, other, rounding_mode):
    return None if rounding_mode else grad / conj(other)


@backward(torch.div, wrt="other", symmetric=True)
def div_other(grad, input, other, rounding_mode):
    # Divided twice rather than once by the square: b*b underflows long before b does.
    return None if rounding_mode else -(grad * conj(input / other / other))


zero_gradient(torch.floor_divide, wrt=("input", "other"))


# fmod: a - b trunc(a / b), and remainder: a - b floor(a / b)

passes_through(torch.fmod, torch.remainder, wrt="input")


@backward(torch.fmod, wrt="other", symmetric=True)
def fmod_other(grad, input, other):
    return -(grad * torch.div(input, other, rounding_mode="trunc"))


@backward(torch.remainder, wrt="other", symmetric=True)
def remainder_other(grad, input, other):
    return -(grad * torch.div(input, other, rounding_mode="floor"))


@backward(torch.neg, symmetric=True)
def neg(grad):
    return -grad


passes_through(torch.positive)


@backward(torch.abs, symmetric=True)
def abs(grad, input):
    return grad * input.sgn()  # for complex z too; z/|z| would underflow where sgn does not


@backward(torch.reciprocal, symmetric=True)
def reciprocal(grad, result):
    return -(grad * conj(result * result))


# addcmul: a + value b c

passes_through(torch.addcmul, wrt="input")


@backward(torch.addcmul, wrt="tensor1", symmetric=True)
def addcmul_tensor1(grad, tensor2, value):
    return scaled(wide(grad), value) * conj(tensor2)


@backward(torch.addcmul, wrt="tensor2", symmetric=True)
def addcmul_tensor2(grad, tensor1, value):
    return scaled(wide(grad), value) * conj(tensor1)


# addcdiv: a + value b / c

passes_through(torch.addcdiv, wrt="input")


@backward(torch.addcdiv, wrt="tensor1", symmetric=True)
def addcdiv_tensor1(grad, tensor2, value):
    return scaled(wide(grad), value) / conj(tensor2)


@backward(torch.addcdiv, wrt="tensor2", symmetric=True)
def addcdiv_tensor2(grad, tensor1, tensor2, value):
    return -(scaled(wide(grad), value) * conj(wide(tensor1) / tensor2 / tensor2))


# lerp: a + weight (b - a)


@backward(torch.lerp, wrt="input", symmetric=True)
def lerp_input(grad, weight):
    return grad * (1 - conj(weight))


@backward(torch.lerp, wrt="end", symmetric=True)
def lerp_end(grad, weight):
    return grad * conj(weight)


@backward(torch.lerp, wrt="weight", symmetric=True)
def lerp_weight(grad, input, end):
    return grad * conj(end - input)
