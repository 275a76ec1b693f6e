"""Sums, products and quotients of two tensors, or of a tensor and a number; the absolute value."""

import torch

from ops_registry.declare import passes_through, zero_gradient
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj, scaled
from ops_registry.shared.precision import wide

# add: a + alpha b

passes_through(torch.add, wrt="input")


@backward(torch.add, wrt="other")
def add_other(grad, alpha):
    return grad if alpha == 1 else grad * conj(alpha)


# sub: a - alpha b

passes_through(torch.sub, wrt="input")


@backward(torch.sub, wrt="other")
def sub_other(grad, alpha):
    return -grad if alpha == 1 else grad * -conj(alpha)


# rsub: b - alpha a


@backward(torch.rsub, wrt="input")
def rsub_input(grad, alpha):
    return -grad if alpha == 1 else grad * -conj(alpha)


passes_through(torch.rsub, wrt="other")


@backward(torch.mul, wrt="input")
def mul_input(grad, other):
    return grad * conj(other)


@backward(torch.mul, wrt="other")
def mul_other(grad, input):
    return grad * conj(input)


# div: a / b. Rounded to whole numbers, a quotient is constant between its jumps.


@backward(torch.div, wrt="input")
def div_input(grad, other, rounding_mode):
    return None if rounding_mode else grad / conj(other)


@backward(torch.div, wrt="other")
def div_other(grad, input, other, rounding_mode):
    # Divided twice rather than once by the square: b*b underflows long before b does.
    return None if rounding_mode else -(grad * conj(input / other / other))


zero_gradient(torch.floor_divide, wrt=("input", "other"))


# fmod: a - b trunc(a / b), and remainder: a - b floor(a / b)

passes_through(torch.fmod, torch.remainder, wrt="input")


@backward(torch.fmod, wrt="other")
def fmod_other(grad, input, other):
    return -(grad * torch.div(input, other, rounding_mode="trunc"))


@backward(torch.remainder, wrt="other")
def remainder_other(grad, input, other):
    return -(grad * torch.div(input, other, rounding_mode="floor"))


@backward(torch.neg)
def neg(grad):
    return -grad


passes_through(torch.positive)


@backward(torch.abs)
def abs(grad, input):
    return grad * input.sgn()  # for complex z too; z/|z| would underflow where sgn does not


@backward(torch.reciprocal)
def reciprocal(grad, result):
    return -(grad * conj(result * result))


# addcmul: a + value b c

passes_through(torch.addcmul, wrt="input")


@backward(torch.addcmul, wrt="tensor1")
def addcmul_tensor1(grad, tensor2, value):
    return scaled(wide(grad), value) * conj(tensor2)


@backward(torch.addcmul, wrt="tensor2")
def addcmul_tensor2(grad, tensor1, value):
    return scaled(wide(grad), value) * conj(tensor1)


# addcdiv: a + value b / c

passes_through(torch.addcdiv, wrt="input")


@backward(torch.addcdiv, wrt="tensor1")
def addcdiv_tensor1(grad, tensor2, value):
    return scaled(wide(grad), value) / conj(tensor2)


@backward(torch.addcdiv, wrt="tensor2")
def addcdiv_tensor2(grad, tensor1, tensor2, value):
    return -(scaled(wide(grad), value) * conj(wide(tensor1) / tensor2 / tensor2))


# lerp: a + weight (b - a)


@backward(torch.lerp, wrt="input")
def lerp_input(grad, weight):
    return grad * (1 - conj(weight))


@backward(torch.lerp, wrt="end")
def lerp_end(grad, weight):
    return grad * conj(weight)


@backward(torch.lerp, wrt="weight")
def lerp_weight(grad, input, end):
    return grad * conj(end - input)
