"""Normalisation by layer, group and root mean square."""

import math

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj
from ops_registry.shared.normalisation import (
    INPUTS,
    all_but_channels,
    double_backward,
    recorded_statistics,
    through_statistics,
)
from ops_registry.shared.optional import per_result, total
from ops_registry.shared.precision import wide
from ops_registry.shared.recorded import recorded

aten = torch.ops.aten


# ---------------------------------------------------------------- layer


def forward_layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable):
    result, mean, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    return result, {"mean": mean, "rstd": rstd}


def last_dims(x, normalized_shape):
    return list(range(x.dim() - len(normalized_shape), x.dim()))


@backward(torch.layer_norm, wrt=INPUTS, forward=forward_layer_norm)
def layer_norm(grad, input, normalized_shape, weight, bias, mean, rstd, eps, needs):
    if recorded():
        mean, rstd = recorded_statistics(input, last_dims(input, normalized_shape), eps, mean)
    return aten.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, list(needs))


def forward_native_layer_norm(input, normalized_shape, weight, bias, eps):
    result = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    return result, {"mean": result[1], "rstd": result[2]}


# As in torch, the statistics that it returns are constants.
@backward(torch.native_layer_norm, wrt=INPUTS, forward=forward_native_layer_norm, constant_results=(1, 2))
def native_layer_norm(grad, input, normalized_shape, weight, bias, mean, rstd, eps, needs):
    if recorded():
        mean, rstd = recorded_statistics(input, last_dims(input, normalized_shape), eps, mean)
    return aten.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, list(needs))


@backward(aten.native_layer_norm_backward, wrt=("grad_out", "input", "weight", "mean", "rstd"), linear=["grad_out"])
def native_layer_norm_backward(grad, grad_out, input, normalized_shape, mean, rstd, weight, output_mask, needs):
    cotangents = per_result(grad, output_mask)
    dims = last_dims(input, normalized_shape)
    found = double_backward(grad_out, input, mean, rstd, weight, dims, cotangents)
    grad_grad_out, *others = (f if needed else None for f, needed in zip(found, needs, strict=True))
    return None if grad_grad_out is None else grad_grad_out.expand(input.shape), *others


zero_gradient(aten.native_layer_norm_backward, wrt="bias")  # the kernel reads its shape alone


# ---------------------------------------------------------------- group


def memory_layout(x):
    """The memory layout in which group norm works on ``x``."""
    if x.dim() in (4, 5) and x.device.type == "cpu":
        channels_last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        if x.is_contiguous(memory_format=channels_last):
            return channels_last
    return torch.contiguous_format


def grouped_shape(shape, groups):
    """Samples, groups, channels of a group, places: each group of each sample is normalised over the last two."""
    return shape[0], groups, shape[1] // groups, math.prod(shape[2:])


def by_address(*per_channel):
    """Weight and bias for the kernels, which read them by address and ignore their strides."""
    return [None if t is None else t.contiguous() for t in per_channel]


def group_gradients(grad, x, groups, weight, mean, rstd, needs):
    """The gradients of ``x``, weight and bias, for the gradient of the normalised result."""
    samples, channels = x.shape[:2]
    places = math.prod(x.shape[2:])
    [weight] = by_address(weight)
    mask = [needs.input, needs.weight, needs.bias and weight is not None]
    grad_x = grad_weight = grad_bias = None
    if any(mask):
        # The kernel assumes one layout for both, and crashes on channels last without the gradient of its input.
        layout = memory_layout(x) if needs.input else torch.contiguous_format
        grad, x = grad.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
        grad_x, grad_weight, grad_bias = aten.native_group_norm_backward(
            grad, x, mean, rstd, weight, samples, channels, places, groups, mask
        )
    if needs.bias and weight is None:
        grad_bias = grad.sum(all_but_channels(grad.dim()))
    return grad_x, grad_weight, grad_bias


def recorded_group_statistics(x, groups, eps, like):
    return recorded_statistics(x.reshape(grouped_shape(x.shape, groups)), [2, 3], eps, like)


def forward_group_norm(input, num_groups, weight, bias, eps, cudnn_enabled):
    samples, channels = input.shape[:2] if input.dim() > 1 else (0, 0)
    fits = input.dim() > 1 and num_groups > 0 and channels % num_groups == 0
    if not fits or (weight is not None and weight.shape != (channels,)):
        return torch.group_norm(input, num_groups, weight, bias, eps, cudnn_enabled), {}  # torch says what is wrong
    input = input.contiguous(memory_format=memory_layout(input))
    weight, bias = by_address(weight, bias)
    places = math.prod(input.shape[2:])
    result, mean, rstd = torch.native_group_norm(input, weight, bias, samples, channels, places, num_groups, eps)
    return result, {"mean": mean, "rstd": rstd}


@backward(torch.group_norm, wrt=INPUTS, forward=forward_group_norm)
def group_norm(grad, input, num_groups, weight, mean, rstd, eps, needs):
    if recorded():
        mean, rstd = recorded_group_statistics(input, num_groups, eps, mean)
    return group_gradients(grad, input, num_groups, weight, mean, rstd, needs)


def forward_native_group_norm(input, weight, bias, *sizes):
    result = torch.native_group_norm(input, *by_address(weight, bias), *sizes)
    return result, {"mean": result[1], "rstd": result[2]}


@backward(torch.native_group_norm, wrt=INPUTS, forward=forward_native_group_norm)
def native_group_norm(grad, input, weight, group, mean, rstd, eps, needs):
    grad_output, grad_mean, grad_rstd = grad
    if recorded():
        mean, rstd = recorded_group_statistics(input, group, eps, mean)
    grad_x = grad_weight = grad_bias = None
    if grad_output is not None:
        grad_x, grad_weight, grad_bias = group_gradients(grad_output, input, group, weight, mean, rstd, needs)
    if needs.input:
        x = input.reshape(grouped_shape(input.shape, group))
        mean, rstd, grad_mean, grad_rstd = (
            None if t is None else t[:, :, None, None] for t in (mean, rstd, grad_mean, grad_rstd)
        )
        through = through_statistics(x, mean, rstd, [2, 3], grad_mean, grad_rstd)
        grad_x = total(grad_x, None if through is None else through.reshape(input.shape))
    return grad_x, grad_weight, grad_bias


@backward(aten.native_group_norm_backward, wrt=("grad_out", "input", "weight", "mean", "rstd"), linear=["grad_out"])
def native_group_norm_backward(grad, grad_out, input, mean, rstd, weight, group, output_mask, needs):
    shape = grouped_shape(input.shape, group)
    cot_x, cot_weight, cot_bias = per_result(grad, output_mask)
    cot_x, grad_out, x = (None if t is None else t.reshape(shape) for t in (cot_x, grad_out, input))
    weight, cot_weight, cot_bias = (
        None if t is None else t.reshape(1, group, -1, 1) for t in (weight, cot_weight, cot_bias)
    )
    mean, rstd = mean.reshape(*shape[:2], 1, 1), rstd.reshape(*shape[:2], 1, 1)
    found = double_backward(grad_out, x, mean, rstd, weight, [2, 3], (cot_x, cot_weight, cot_bias))
    grad_grad_out, grad_x, grad_weight, grad_mean, grad_rstd = (
        f if needed else None for f, needed in zip(found, needs, strict=True)
    )
    return (
        None if grad_grad_out is None else grad_grad_out.expand(shape).reshape(input.shape),
        None if grad_x is None else grad_x.reshape(input.shape),
        None if grad_weight is None else grad_weight.sum([0, 3]).reshape(-1),
        None if grad_mean is None else grad_mean.sum([2, 3]),
        None if grad_rstd is None else grad_rstd.sum([2, 3]),
    )


# ---------------------------------------------------------------- root mean square


@backward(torch.rms_norm, wrt=("input", "weight"))
def rms_norm(grad, input, normalized_shape, weight, eps, needs):
    """y = w x^ with x^ = x r and r = 1 / sqrt(mean(x^2) + eps), so dx^ = r (dx - x^ mean(x^ dx))."""
    grad, input, weight = (None if t is None else wide(t) for t in (grad, input, weight))
    dims = last_dims(input, normalized_shape)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    r = conj(((input * input).mean(dims, keepdim=True) + eps).rsqrt())
    normal = conj(input) * r
    grad_x = grad_weight = None
    if needs.input:
        h = grad if weight is None else grad * conj(weight)
        grad_x = r * (h - normal * (normal * h).mean(dims, keepdim=True))
    if needs.weight:
        grad_weight = grad * normal
    return grad_x, grad_weight


@decomposition(torch._fused_rms_norm)
def fused_rms_norm(input, normalized_shape, weight, eps):
    x = wide(input)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = ((x * x).mean(last_dims(x, normalized_shape), keepdim=True) + eps).rsqrt()
    return torch.rms_norm(input, normalized_shape, weight, eps), rstd
