"""Activation functions. Most gradients are torch's own fused kernels, which have rules too, for second derivatives."""

import math

import torch

from ops_registry.declare import self_adjoint, zero_gradient
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj

aten = torch.ops.aten
nn = torch._C._nn

#: selu(x) is elu(x, ALPHA, SCALE): the values for which means 0 and variances 1 stay so from layer to layer.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


# sigmoid: s = 1 / (1 + e^-x), so ds/dx = s (1 - s)


@backward(torch.sigmoid, symmetric=True)
def sigmoid(grad, result):
    return aten.sigmoid_backward(grad, result)


self_adjoint(aten.sigmoid_backward, wrt="grad_output")


@backward(aten.sigmoid_backward, wrt="output", symmetric=True, holomorphic=False)
def sigmoid_backward_output(grad, grad_output, output):
    return conj(grad) * grad_output * conj(1 - output - output)


# logit: log(x / (1 - x)), so its slope is 1 / (x (1 - x)); 0 where eps clamps, nan outside of [0, 1] where nothing does


@backward(torch.logit, symmetric=True)
def logit(grad, input, eps):
    return aten.logit_backward(grad, input, eps)


self_adjoint(aten.logit_backward, wrt="grad_output")


@backward(aten.logit_backward, wrt="input", symmetric=True)
def logit_backward_input(grad, grad_output, input, eps):
    """The derivative of ``1 / (x (1 - x))``, itself times ``(2 x - 1) / (x (1 - x))``."""
    slope = aten.logit_backward(grad * grad_output, input, eps)
    return aten.logit_backward(slope * (input + input - 1), input, eps)


# Piecewise linear ones: the slope is 0 or a constant on each piece, and 0 at the kinks of relu, hardtanh and the like.


@backward(torch.relu, symmetric=True)
def relu(grad, result):
    return aten.threshold_backward(grad, result, 0)


@backward(torch.threshold, symmetric=True)
def threshold(grad, input, threshold):
    return aten.threshold_backward(grad, input, threshold)


@backward(nn.leaky_relu, symmetric=True)
def leaky_relu(grad, input, negative_slope):
    return aten.leaky_relu_backward(grad, input, negative_slope, False)


@backward(nn.leaky_relu, in_place=True)
def leaky_relu_in_place(grad, result, negative_slope):
    _require_sign("leaky_relu_", "negative_slope", negative_slope)
    return aten.leaky_relu_backward(grad, result, negative_slope, True)


def _require_sign(op, name, value):
    """Refuse an in-place call whose result no longer tells which elements were negative."""
    if value < 0:
        raise UnsupportedCallError(
            f"{op} with {name}={value}: the result does not tell where the input was negative. Call it out of place."
        )


@backward(nn.hardtanh, symmetric=True)
def hardtanh(grad, input, min_val, max_val):
    return aten.hardtanh_backward(grad, input, min_val, max_val)


@backward(nn.relu6, symmetric=True)
def relu6(grad, input):
    return aten.hardtanh_backward(grad, input, 0, 6)


@backward(nn.hardsigmoid, symmetric=True)
def hardsigmoid(grad, input):
    return aten.hardsigmoid_backward(grad, input)


@backward(torch.hardshrink, symmetric=True)
def hardshrink(grad, input, lambd):
    return aten.hardshrink_backward(grad, input, lambd)


@backward(nn.softshrink, symmetric=True)
def softshrink(grad, input, lambd):
    return aten.softshrink_backward(grad, input, lambd)


#: Backward kernels that multiply each element of the gradient by a slope that is constant on each piece.
SLOPES = (
    aten.threshold_backward,
    aten.leaky_relu_backward,
    aten.hardtanh_backward,
    aten.hardsigmoid_backward,
    aten.softshrink_backward,
)
self_adjoint(*SLOPES, wrt="grad_output")
self_adjoint(aten.hardshrink_backward, wrt="grad_out")
zero_gradient(*SLOPES, aten.hardshrink_backward, wrt="input")


# rrelu: a leaky relu whose slope is drawn per element when training, and the middle of the range otherwise


def rrelu_forward(input, lower, upper, training, generator):
    """The result, and the slope of each element as by-product."""
    if not -math.inf < lower <= upper < math.inf:
        return torch.rrelu(input, lower, upper, training, generator=generator), {}  # raises: torch says what is wrong
    noise = torch.empty_like(input, memory_format=torch.contiguous_format)  # the kernel fills it in this order
    result = nn.rrelu_with_noise(input, noise, lower, upper, training, generator)
    if not training:
        noise = aten.leaky_relu_backward(torch.ones_like(input), input, (lower + upper) / 2, False)
    return result, {"slope": noise}


@backward(torch.rrelu, forward=rrelu_forward, symmetric=True)
def rrelu(grad, slope):
    return grad * slope


@backward(nn.rrelu_with_noise)
def rrelu_with_noise(grad, input, noise, lower, upper, training):
    if not training:
        return aten.leaky_relu_backward(grad, input, (lower + upper) / 2, False)
    if not noise.is_contiguous():
        raise UnsupportedCallError(
            "rrelu_with_noise fills a noise that is not contiguous in another order: pass one that is"
        )
    return grad * noise


# prelu: max(0, x) + weight * min(0, x), with one weight for all or one per channel


@backward(torch.prelu, wrt=("input", "weight"), symmetric="input")
def prelu(grad, input, weight, needs):
    along_channels = (-1,) + (1,) * (input.dim() - 2) if input.dim() > 1 else (1,) * input.dim()
    shaped = weight.reshape(along_channels)
    grad_input, grad_weight = aten._prelu_kernel_backward(grad, input, shaped)
    if needs.weight:
        grad_weight = grad_weight.sum_to_size(shaped.shape).reshape(weight.shape)
    return grad_input if needs.input else None, grad_weight if needs.weight else None


@backward(torch._prelu_kernel, wrt=("input", "weight"))
def prelu_kernel(grad, input, weight):
    return aten._prelu_kernel_backward(grad, input, weight)


@backward(aten._prelu_kernel_backward, wrt=("grad_output", "input", "weight"))
def prelu_kernel_backward(grad, grad_output, input, weight, needs):
    # It returns (g, 0) where x > 0 and (weight g, x g) elsewhere.
    a, b = (torch.zeros_like(grad_output) if g is None else g for g in grad)
    positive, zero = input > 0, torch.zeros_like(grad_output)
    return (
        torch.where(positive, a, a * weight + b * input) if needs.grad_output else None,
        torch.where(positive, zero, b * grad_output) if needs.input else None,
        torch.where(positive, zero, a * grad_output) if needs.weight else None,
    )


# elu: scale x above 0, scale alpha (exp(input_scale x) - 1) below


@backward(nn.elu, symmetric=True)
def elu(grad, input, alpha, scale, input_scale):
    return aten.elu_backward(grad, alpha, scale, input_scale, False, input)


@backward(torch.selu, symmetric=True)
def selu(grad, input):
    return aten.elu_backward(grad, SELU_ALPHA, SELU_SCALE, 1, False, input)


@backward(torch.celu, symmetric=True)
def celu(grad, input, alpha):
    return aten.elu_backward(grad, alpha, 1, 1 / alpha, False, input)


# Written in place, they keep the result y: below 0 the slope is input_scale (y + scale alpha).


@backward(nn.elu, in_place=True)
def elu_in_place(grad, result, alpha, scale, input_scale):
    _require_sign("elu_", "alpha", alpha)
    return aten.elu_backward(grad, alpha, scale, input_scale, True, result)


@backward(torch.selu, in_place=True)
def selu_in_place(grad, result):
    return aten.elu_backward(grad, SELU_ALPHA, SELU_SCALE, 1, True, result)


@backward(torch.celu, in_place=True)
def celu_in_place(grad, result, alpha):
    _require_sign("celu_", "alpha", alpha)
    return aten.elu_backward(grad, alpha, 1, 1 / alpha, True, result)


self_adjoint(aten.elu_backward, wrt="grad_output")


@backward(aten.elu_backward, wrt="self_or_result", symmetric=True)
def elu_backward_self_or_result(grad, grad_output, alpha, scale, input_scale, is_result, self_or_result):
    # Below 0 the slope is input_scale (y + scale alpha) in terms of the result y.
    second = input_scale
    if not is_result:
        second = scale * alpha * input_scale**2 * (self_or_result * input_scale).exp()
    return torch.where(self_or_result > 0, 0, grad * grad_output * second)


# gelu: x P(x), with the normal distribution P (density p), or its approximation (1 + tanh u) / 2, u = k (x + c x³)


@backward(nn.gelu, symmetric=True)
def gelu(grad, input, approximate):
    return aten.gelu_backward(grad, input, approximate=approximate)


self_adjoint(aten.gelu_backward, wrt="grad_output")


@backward(aten.gelu_backward, wrt="input", symmetric=True)
def gelu_backward_input(grad, grad_output, input, approximate):
    x = input
    if approximate == "none":
        # (P + x p)' = 2 p + x p', p' = -x p
        second = (2 - x * x) * (x * x / -2).exp() / math.sqrt(2 * math.pi)
    else:
        k, c = math.sqrt(2 / math.pi), 0.044715
        t = (k * (x + c * x * x * x)).tanh()
        u1, u2 = k * (1 + 3 * c * x * x), k * 6 * c * x
        # ((1 + t) / 2 + x t' / 2)' = t' + x t'' / 2, t' = (1 - t²) u', t'' = (1 - t²) (u'' - 2 t u'²)
        second = (1 - t * t) * (u1 + x * (u2 / 2 - t * u1 * u1))
    return grad * grad_output * second


# silu: x s(x), with the sigmoid s


@backward(nn.silu, symmetric=True)
def silu(grad, input):
    return aten.silu_backward(grad, conj(input))


# The kernel multiplies by silu'(x), and does not conjugate it.
self_adjoint(aten.silu_backward, wrt="grad_output")


@backward(aten.silu_backward, wrt="input", symmetric=True, holomorphic=False)
def silu_backward_input(grad, grad_output, input):
    s = input.sigmoid()
    # (s + x s')' = 2 s' + x s'', s' = s (1 - s), s'' = s' (1 - 2 s)
    return grad * conj(grad_output * s * (1 - s) * (2 + input * (1 - 2 * s)))


# mish: x tanh(softplus(x))


@backward(nn.mish, symmetric=True)
def mish(grad, input):
    return aten.mish_backward(grad, input)


self_adjoint(aten.mish_backward, wrt="grad_output")


@backward(aten.mish_backward, wrt="input", symmetric=True)
def mish_backward_input(grad, grad_output, input):
    s, t = input.sigmoid(), nn.softplus(input).tanh()
    # (t + x t')' = 2 t' + x t'', t' = (1 - t²) s, t'' = t' (1 - s - 2 t s)
    return grad * grad_output * (1 - t * t) * s * (2 + input * (1 - s - 2 * t * s))


# softplus: log(1 + exp(beta x)) / beta, and x itself where beta x > threshold


@backward(nn.softplus, symmetric=True)
def softplus(grad, input, beta, threshold):
    return aten.softplus_backward(grad, input, beta, threshold)


self_adjoint(aten.softplus_backward, wrt="grad_output")


@backward(aten.softplus_backward, wrt="input", symmetric=True)
def softplus_backward_input(grad, grad_output, input, beta, threshold):
    s = (input * beta).sigmoid()
    return torch.where(input * beta > threshold, 0, grad * grad_output * beta * s * (1 - s))


# log_sigmoid: log(s(x))


def log_sigmoid_forward(input):
    """The result, and the buffer of intermediate values that torch's backward kernel takes."""
    result, buffer = aten.log_sigmoid_forward(input)
    return result, {"buffer": buffer}


@backward(nn.log_sigmoid, forward=log_sigmoid_forward, symmetric=True)
def log_sigmoid(grad, input, buffer):
    return aten.log_sigmoid_backward(grad, input, buffer)


self_adjoint(aten.log_sigmoid_backward, wrt="grad_output")


@backward(aten.log_sigmoid_backward, wrt="input", symmetric=True)
def log_sigmoid_backward_input(grad, grad_output, input):
    s = input.sigmoid()
    return -grad * grad_output * s * (1 - s)


# hardswish: x (x + 3) / 6 between -3 and 3, 0 below, x above


@backward(nn.hardswish, symmetric=True)
def hardswish(grad, input):
    return aten.hardswish_backward(grad, input)


self_adjoint(aten.hardswish_backward, wrt="grad_output")


@backward(aten.hardswish_backward, wrt="input", symmetric=True)
def hardswish_backward_input(grad, grad_output, input):
    return torch.where(input.abs() < 3, grad * grad_output / 3, 0)


# glu: a s(b), with a and b the halves of the input


@backward(nn.glu)
def glu(grad, input, dim):
    return aten.glu_backward(grad, input, dim)


@backward(aten.glu_backward, wrt="grad_output", linear=True)
def glu_backward(grad, input, dim):
    a, b = input.chunk(2, dim)
    grad_a, grad_b = grad.chunk(2, dim)
    s = b.sigmoid()
    return grad_a * s + grad_b * a * s * (1 - s)


@backward(aten.glu_backward, wrt="input")
def glu_backward_input(grad, grad_output, input, dim):
    a, b = input.chunk(2, dim)
    grad_a, grad_b = grad.chunk(2, dim)
    s = b.sigmoid()
    slope = grad_output * s * (1 - s)
    return torch.cat((grad_b * slope, (grad_a + grad_b * a * (1 - 2 * s)) * slope), dim)
