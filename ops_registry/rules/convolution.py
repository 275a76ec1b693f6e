"""Convolutions and transposed convolutions in one, two and three dimensions.

All are one trilinear form ``T(g, x, w) = <g, conv(x, w)>``: each gradient is the derivative of ``T`` by one of its
three arguments, and so is every gradient of a gradient.
"""

import torch

from ops_registry.registry import backward
from ops_registry.shared.optional import per_result, total
from ops_registry.shared.recorded import recorded

#: What a formula of a convolution covers, and what of it the kernel casts: it wants one dtype throughout.
INPUTS = ("input", "weight", "bias")
CAST = ("input", "weight")

X_ALONE = [True, False, False]
W_ALONE = [False, True, False]


def repeated(value, n):
    """One number for all ``n`` dimensions, or a list, as a list of ``n`` numbers."""
    if isinstance(value, int):
        return [value] * n
    return list(value) * n if len(value) == 1 else list(value)


def kernel(g, x, w, bias_sizes, geometry, mask):
    """The gradients of ``<g, conv(x, w) + b>`` by ``x``, ``w`` and ``b`` that ``mask`` asks for."""
    return torch.ops.aten.convolution_backward(g, x, w, bias_sizes, *geometry, mask)


def complex_kernel(g, x, w, geometry, mask):
    """As ``kernel``, for complex tensors, which the real kernel does not take: ``conv`` is linear in each argument, so
    its adjoint by ``x`` is that of the real one applied to ``g`` and ``conj(w)``, part by part; likewise by ``w``.
    """

    def product(a, b, f):
        return torch.complex(f(a.real, b.real) - f(a.imag, b.imag), f(a.real, b.imag) + f(a.imag, b.real))

    x_real, w_real = x.real, w.real  # for their shapes
    grad_x = product(g, w.conj(), lambda a, b: kernel(a, x_real, b, None, geometry, X_ALONE)[0]) if mask[0] else None
    grad_w = product(g, x.conj(), lambda a, b: kernel(a, b, w_real, None, geometry, W_ALONE)[1]) if mask[1] else None
    grad_b = g.sum([d for d in range(g.dim()) if d != 1]) if mask[2] else None
    return grad_x, grad_w, grad_b


def gradients(g, x, w, bias_shape, geometry, needs):
    """The gradients of one convolution; its input may lack the batch dimension."""
    unbatched = x.dim() < w.dim()
    if unbatched:
        g, x = g.unsqueeze(0), x.unsqueeze(0)
    mask = list(needs)
    if g.is_complex():
        grad_x, grad_w, grad_b = complex_kernel(g, x, w, geometry, mask)
    else:
        grad_x, grad_w, grad_b = kernel(g, x, w, list(bias_shape) if mask[2] else None, geometry, mask)
    return grad_x.squeeze(0) if unbatched and mask[0] else grad_x, grad_w, grad_b


@backward(
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    wrt=INPUTS,
    cast_to_grad=CAST,
    linear=[("input", "bias"), ("weight", "bias")],
)
def conv(grad, input, weight, bias_shape, stride, padding, dilation, groups, needs):
    n = weight.dim() - 2
    stride, dilation = repeated(stride, n), repeated(dilation, n)
    if padding == "same":
        return same_padded(grad, input, weight, bias_shape, (stride, dilation, groups), needs)
    padding = [0] * n if padding == "valid" else repeated(padding, n)
    return gradients(grad, input, weight, bias_shape, (stride, padding, dilation, False, [0] * n, groups), needs)


def same_padded(g, x, w, bias_shape, strides, needs):
    """The gradients where the padding keeps the input's size; an odd total puts one more zero at the end."""
    stride, dilation, groups = strides
    n = len(stride)
    spans = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    geometry = (stride, [s // 2 for s in spans], dilation, False, [0] * n, groups)
    odd = [s % 2 for s in spans]
    if not any(odd):
        return gradients(g, x, w, bias_shape, geometry, needs)
    at_the_end = [side for more in reversed(odd) for side in (0, more)]
    grad_x, grad_w, grad_b = gradients(g, torch.constant_pad_nd(x, at_the_end), w, bias_shape, geometry, needs)
    if grad_x is not None:
        for d, length in enumerate(x.shape[-n:]):
            grad_x = grad_x.narrow(d - n, 0, length)
    return grad_x, grad_w, grad_b


@backward(
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    wrt=INPUTS,
    cast_to_grad=CAST,
    linear=[("input", "bias"), ("weight", "bias")],
)
def conv_transpose(grad, input, weight, bias_shape, stride, padding, output_padding, groups, dilation, needs):
    n = weight.dim() - 2
    stride, padding, dilation, output_padding = (repeated(v, n) for v in (stride, padding, dilation, output_padding))
    return gradients(grad, input, weight, bias_shape, (stride, padding, dilation, True, output_padding, groups), needs)


@backward(
    torch.convolution, torch._convolution, wrt=INPUTS, cast_to_grad=CAST, linear=[("input", "bias"), ("weight", "bias")]
)
def convolution(grad, input, weight, bias_shape, stride, padding, dilation, transposed, output_padding, groups, needs):
    n = weight.dim() - 2
    stride, padding, dilation, output_padding = (repeated(v, n) for v in (stride, padding, dilation, output_padding))
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    return gradients(grad, input, weight, bias_shape, geometry, needs)


# The kernel returns dT/dx, dT/dw and the sum of g. Against cotangents v, a, b of these that is
# S = T(g, v, w) + T(g, x, a) + <b, sum of g>, again trilinear in each term.


@backward(torch.ops.aten.convolution_backward, wrt=("grad_output", "input", "weight"), linear=["grad_output"])
def convolution_backward(
    grad, grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask, needs
):
    v, a, b = per_result(grad, output_mask)
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    grad_g = grad_x = grad_w = None
    if needs.grad_output:
        grad_g = total(
            None if v is None else torch.convolution(v, weight, None, *geometry),
            None if a is None else torch.convolution(input, a, b, *geometry),
        )
        if a is None and b is not None:
            grad_g = total(grad_g, b.reshape(-1, *[1] * len(stride)).expand(grad_output.shape))
    if needs.input and a is not None:
        grad_x = kernel(grad_output, input, a, None, geometry, X_ALONE)[0]
    if needs.weight and v is not None:
        grad_w = kernel(grad_output, v, weight, None, geometry, W_ALONE)[1]
    return grad_g, grad_x, grad_w


@backward(torch.conv_tbc, wrt=INPUTS, cast_to_grad=INPUTS, linear=[("input", "bias"), ("weight", "bias")])
def conv_tbc(grad, input, weight, bias, pad, needs):
    """A convolution of tensors laid out as time, batch, channels."""
    if not recorded() and not grad.is_complex():  # of complex tensors torch's kernel does not conjugate
        return torch.ops.aten.conv_tbc_backward(grad.contiguous(), input, weight, bias, pad)
    batch_channels_time, out_in_places = (1, 2, 0), (2, 1, 0)
    geometry = ([1], [pad], [1], False, [0], 1)
    g, x = grad.permute(batch_channels_time), input.permute(batch_channels_time)
    grad_x, grad_w, grad_b = gradients(g, x, weight.permute(out_in_places), bias.shape, geometry, needs)
    if needs.input:
        grad_x = grad_x.permute(2, 0, 1)
    if needs.weight:
        grad_w = grad_w.permute(out_in_places)
    return grad_x, grad_w, grad_b
