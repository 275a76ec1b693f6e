"""Pooling over windows: maximum, average, adaptive, fractional, and the inverse of maximum pooling.

One dimension is two with a height of 1. The gradient of a maximum goes to the place that the forward pass chose, and
the gradient of that gradient is read at the same places.
"""

import math

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward
from ops_registry.shared.dimensions import shape_only

aten = torch.ops.aten
nn = torch._C._nn


def return_maxima(func):
    """The forward of an op that returns the maxima alone, by ``func``, which returns their places as well."""

    def forward(*args):
        result, indices = func(*args)
        return result, {"indices": indices}

    return forward


def return_both(func):
    """The forward of ``func``, which returns the maxima and their places."""

    def forward(*args):
        result = func(*args)
        return result, {"indices": result[1]}

    return forward


def read_at(values, indices, n):
    """``values`` at ``indices`` into their last ``n`` dimensions, taken as one."""
    return values.flatten(-n).gather(-1, indices.flatten(-n)).reshape(indices.shape)


def flat_pair(value, fill):
    """A window argument for one dimension as one for two, ``fill`` being that of the height."""
    value = [value] if isinstance(value, int) else list(value or [])
    return [fill, *value] if value else []


def for_shape(grad, input):
    """``input`` for a kernel that reads its shape and layout alone; a tensor without memory where autocast had cast it."""
    return input if input.dtype == grad.dtype else shape_only(grad, input.shape)


# ---------------------------------------------------------------- maximum


@backward(torch.max_pool1d, forward=return_maxima(torch.max_pool1d_with_indices))
@backward(torch.max_pool1d_with_indices, forward=return_both(torch.max_pool1d_with_indices))
def max_pool1d(grad, input, indices, kernel_size, stride, padding, dilation, ceil_mode):
    window = flat_pair(kernel_size, 1), flat_pair(stride, 1), flat_pair(padding, 0), flat_pair(dilation, 1), ceil_mode
    grad, input, indices = grad.unsqueeze(-2), input.unsqueeze(-2), indices.unsqueeze(-2)
    return aten.max_pool2d_with_indices_backward(grad, input, *window, indices).squeeze(-2)


@backward(torch.max_pool2d, forward=return_maxima(nn.max_pool2d_with_indices))
@backward(nn.max_pool2d_with_indices, forward=return_both(nn.max_pool2d_with_indices))
def max_pool2d(grad, input, indices, kernel_size, stride, padding, dilation, ceil_mode):
    window = kernel_size, stride or [], padding, dilation, ceil_mode
    return aten.max_pool2d_with_indices_backward(grad, for_shape(grad, input), *window, indices)


@backward(torch.max_pool3d, forward=return_maxima(nn.max_pool3d_with_indices))
@backward(nn.max_pool3d_with_indices, forward=return_both(nn.max_pool3d_with_indices))
def max_pool3d(grad, input, indices, kernel_size, stride, padding, dilation, ceil_mode):
    window = kernel_size, stride or [], padding, dilation, ceil_mode
    return aten.max_pool3d_with_indices_backward(grad, for_shape(grad, input), *window, indices)


@backward(torch.adaptive_max_pool1d, forward=return_both(torch.adaptive_max_pool1d))
def adaptive_max_pool1d(grad, input, indices):
    grad, input, indices = grad.unsqueeze(-2), input.unsqueeze(-2), indices.unsqueeze(-2)
    return aten.adaptive_max_pool2d_backward(grad, input, indices).squeeze(-2)


@backward(nn.adaptive_max_pool2d, forward=return_both(nn.adaptive_max_pool2d))
def adaptive_max_pool2d(grad, input, indices):
    return aten.adaptive_max_pool2d_backward(grad, for_shape(grad, input), indices)


@backward(nn.adaptive_max_pool3d, forward=return_both(nn.adaptive_max_pool3d))
def adaptive_max_pool3d(grad, input, indices):
    return aten.adaptive_max_pool3d_backward(grad, for_shape(grad, input), indices)


@backward(nn.fractional_max_pool2d, forward=return_both(nn.fractional_max_pool2d))
def fractional_max_pool2d(grad, input, indices, kernel_size, output_size):
    return aten.fractional_max_pool2d_backward(grad, for_shape(grad, input), kernel_size, output_size, indices)


@backward(nn.fractional_max_pool3d, forward=return_both(nn.fractional_max_pool3d))
def fractional_max_pool3d(grad, input, indices, kernel_size, output_size):
    return aten.fractional_max_pool3d_backward(grad, for_shape(grad, input), kernel_size, output_size, indices)


@backward(
    aten.max_pool2d_with_indices_backward,
    aten.adaptive_max_pool2d_backward,
    aten.fractional_max_pool2d_backward,
    wrt="grad_output",
)
def max_pool2d_backward(grad, indices):
    return read_at(grad, indices, 2)


@backward(
    aten.max_pool3d_with_indices_backward,
    aten.adaptive_max_pool3d_backward,
    aten.fractional_max_pool3d_backward,
    wrt="grad_output",
)
def max_pool3d_backward(grad, indices):
    return read_at(grad, indices, 3)


# The kernels read the shape of ``input`` alone, never its values.
zero_gradient(
    aten.max_pool2d_with_indices_backward,
    aten.max_pool3d_with_indices_backward,
    aten.adaptive_max_pool2d_backward,
    aten.adaptive_max_pool3d_backward,
    aten.fractional_max_pool2d_backward,
    aten.fractional_max_pool3d_backward,
    aten.avg_pool2d_backward,
    aten.avg_pool3d_backward,
    aten._adaptive_avg_pool2d_backward,
    aten._adaptive_avg_pool3d_backward,
    wrt="input",
)


@backward(nn.max_unpool2d)
def max_unpool2d(grad, indices):
    return read_at(grad, indices, 2)


@backward(nn.max_unpool3d)
def max_unpool3d(grad, indices):
    return read_at(grad, indices, 3)


# ---------------------------------------------------------------- average


@backward(torch.avg_pool1d, linear=True)
def avg_pool1d(grad, input, kernel_size, stride, padding, ceil_mode, count_include_pad):
    window = flat_pair(kernel_size, 1), flat_pair(stride, 1), flat_pair(padding, 0), ceil_mode, count_include_pad, None
    return aten.avg_pool2d_backward(grad.unsqueeze(-2), input.unsqueeze(-2), *window).squeeze(-2)


@backward(nn.avg_pool2d, linear=True)
def avg_pool2d(grad, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    window = kernel_size, stride or [], padding, ceil_mode, count_include_pad, divisor_override
    return aten.avg_pool2d_backward(grad, for_shape(grad, input), *window)


@backward(nn.avg_pool3d, linear=True)
def avg_pool3d(grad, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    window = kernel_size, stride or [], padding, ceil_mode, count_include_pad, divisor_override
    return aten.avg_pool3d_backward(grad, for_shape(grad, input), *window)


@backward(aten.avg_pool2d_backward, wrt="grad_output", linear=True)
def avg_pool2d_backward(grad, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return nn.avg_pool2d(grad, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@backward(aten.avg_pool3d_backward, wrt="grad_output", linear=True)
def avg_pool3d_backward(grad, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return nn.avg_pool3d(grad, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def adaptive_average(grad, shape, n, kernel):
    """The gradient of an average over ``n`` dimensions: that of a mean where there is one window, otherwise by ``kernel``."""
    if all(length == 1 for length in grad.shape[-n:]):
        return (grad / math.prod(shape[-n:])).expand(shape)
    return kernel(grad, shape_only(grad, shape))


@backward(torch.adaptive_avg_pool1d, linear=True)
def adaptive_avg_pool1d(grad, input_shape):
    flat_shape = (*input_shape[:-1], 1, input_shape[-1])
    return adaptive_average(grad.unsqueeze(-2), flat_shape, 2, aten._adaptive_avg_pool2d_backward).squeeze(-2)


@backward(nn.adaptive_avg_pool2d, aten._adaptive_avg_pool2d, linear=True)
def adaptive_avg_pool2d(grad, input_shape):
    return adaptive_average(grad, input_shape, 2, aten._adaptive_avg_pool2d_backward)


@backward(nn.adaptive_avg_pool3d, aten._adaptive_avg_pool3d, linear=True)
def adaptive_avg_pool3d(grad, input_shape):
    return adaptive_average(grad, input_shape, 3, aten._adaptive_avg_pool3d_backward)


@backward(aten._adaptive_avg_pool2d_backward, wrt="grad_output", linear=True)
def adaptive_avg_pool2d_backward(grad, grad_output_shape):
    return nn.adaptive_avg_pool2d(grad, grad_output_shape[-2:])


@backward(aten._adaptive_avg_pool3d_backward, wrt="grad_output", linear=True)
def adaptive_avg_pool3d_backward(grad, grad_output_shape):
    return nn.adaptive_avg_pool3d(grad, grad_output_shape[-3:])
