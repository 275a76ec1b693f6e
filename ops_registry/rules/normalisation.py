"""Normalisation by layer, group and root mean square, and what batch normalisation shares with them.

All but the last are ``y = w x^ + b`` with ``x^ = (x - m) r``, where the mean ``m`` and ``r = 1 / sqrt(variance + eps)``
are taken over some dimensions. The fused kernels get ``m`` and ``r`` as arguments. Where backward is recorded itself,
they are computed anew from the input, so that their own dependence on it is on record; the rules of the kernels then
treat them as arguments like any other.
"""

import math

import torch

from ops_registry.registry import backward, decomposition
from ops_registry.rules.helpers import conj
from ops_registry.rules.kernels import in_dtype_of, per_result, total

aten = torch.ops.aten


BY = ("input", "weight", "bias")


def all_but_channels(rank):
    return [d for d in range(rank) if d != 1]


def wide(x):
    """``x`` in a dtype in which sums over it are exact enough."""
    return x.float() if x.dtype in (torch.half, torch.bfloat16) else x


def statistics(x, dims, eps):
    """Mean and 1 / sqrt(variance + eps) over ``dims``, which stay with length 1."""
    x = wide(x)
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    return mean, ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()


def recorded_statistics(x, dims, eps, like):
    """As ``statistics``, in the shape and dtype in which the kernel gave ``like`` for both."""
    mean, rstd = statistics(x, dims, eps)
    return mean.reshape(like.shape).to(like.dtype), rstd.reshape(like.shape).to(like.dtype)


def through_statistics(x, mean, rstd, dims, by_mean, by_rstd):
    """What reaches ``x`` through its mean and its rstd: dm/dx = 1/n and dr/dx = -r^3 (x - m) / n."""
    n = math.prod(x.shape[d] for d in dims)
    terms = (
        None if by_mean is None else (by_mean / n).expand(x.shape),
        None if by_rstd is None else (-by_rstd * rstd**3 / n) * (x - mean),
    )
    return total(*terms)


def cross(g, x, mean, rstd, weight, dims, cotangents, fixed=False):
    """The gradients of a normalisation's backward kernel by ``g``, ``x``, ``weight``, ``mean`` and ``rstd``, unsummed.

    With h = w g, the kernel gives r (h - mean(h) - x^ mean(h x^)), the sum of g x^ and the sum of g. Against cotangents
    v, a, b that is
        S = r <v, h - mean(h) - x^ mean(h x^)> + <a, g x^> + <b, g>
    The first term is symmetric in v and h, and lacks both means where the statistics are ``fixed``.
    """
    v, a, b = cotangents
    offset = x - mean
    normal = offset * rstd
    by_normal = None if a is None else a * g
    by_g, by_rstd, by_weight = total(None if a is None else a * normal, b), None, None
    if v is not None:
        h = g if weight is None else g * weight
        if fixed:
            pushed = rstd * v
        else:
            v_mean, v_normal = v.mean(dims, keepdim=True), (v * normal).mean(dims, keepdim=True)
            h_normal = (h * normal).mean(dims, keepdim=True)
            straight = v - v_mean - normal * v_normal
            pushed = rstd * straight
            by_rstd = straight * h
            by_normal = total(by_normal, -rstd * (h * v_normal + v * h_normal))
        by_g = total(pushed if weight is None else pushed * weight, by_g)
        by_weight = pushed * g
    if by_normal is None:
        return by_g, None, by_weight, None, by_rstd
    by_x = by_normal * rstd
    return by_g, by_x, by_weight, -by_x, total(by_rstd, by_normal * offset)


# ---------------------------------------------------------------- layer


def autocast_to_single(*tensors):
    """The arguments as autocast passes them to a layer or group norm, which on CUDA it runs in single precision."""
    if not (tensors[0].is_cuda and torch.is_autocast_enabled("cuda")):
        return tensors
    return tuple(t if t is None or t.dtype == torch.double else t.float() for t in tensors)


def forward_layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable):
    input, weight, bias = autocast_to_single(input, weight, bias)
    result, mean, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    return result, {"mean": mean, "rstd": rstd}


def last_dims(x, normalized_shape):
    return list(range(x.dim() - len(normalized_shape), x.dim()))


@backward(torch.layer_norm, wrt=BY, forward=forward_layer_norm)
def layer_norm(grad, input, normalized_shape, weight, bias, mean, rstd, eps, needs):
    (input,) = in_dtype_of(grad, input)
    if torch.is_grad_enabled():
        mean, rstd = recorded_statistics(input, last_dims(input, normalized_shape), eps, mean)
    return aten.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, list(needs))


def forward_native_layer_norm(input, normalized_shape, weight, bias, eps):
    result = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    return result, {"mean": result[1], "rstd": result[2]}


# As in torch, the statistics that it returns are constants.
@backward(torch.native_layer_norm, wrt=BY, forward=forward_native_layer_norm, constant_results=(1, 2))
def native_layer_norm(grad, input, normalized_shape, weight, bias, mean, rstd, eps, needs):
    if torch.is_grad_enabled():
        mean, rstd = recorded_statistics(input, last_dims(input, normalized_shape), eps, mean)
    return aten.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, list(needs))


@backward(aten.native_layer_norm_backward, wrt=("grad_out", "input", "weight", "mean", "rstd"))
def native_layer_norm_backward(grad, grad_out, input, normalized_shape, mean, rstd, weight, output_mask, needs):
    cotangents = per_result(grad, output_mask)
    found = cross(grad_out, input, mean, rstd, weight, last_dims(input, normalized_shape), cotangents)
    by_g, *others = (f if needed else None for f, needed in zip(found, needs, strict=True))
    return None if by_g is None else by_g.expand(input.shape), *others


@backward(aten.native_layer_norm_backward, wrt="bias")
def layer_norm_bias(grad):
    return None  # the kernel takes its shape alone


# ---------------------------------------------------------------- group


def layout(x):
    """The memory layout in which group norm works on ``x``."""
    if x.dim() in (4, 5) and x.device.type == "cpu":
        channels_last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        if x.is_contiguous(memory_format=channels_last):
            return channels_last
    return torch.contiguous_format


def grouped_shape(shape, groups):
    """Samples, groups, channels of a group, places: each group of each sample is normalised over the last two."""
    return shape[0], groups, shape[1] // groups, math.prod(shape[2:])


def group_gradients(g, x, groups, weight, mean, rstd, needs):
    samples, channels = x.shape[:2]
    places = math.prod(x.shape[2:])
    mask = [needs[0], needs[1], needs[2] and weight is not None]
    by_x = by_w = by_b = None
    if any(mask):
        # The kernel takes one layout for granted, and crashes on channels last without the gradient of its input.
        form = layout(x) if mask[0] else torch.contiguous_format
        g, x = g.contiguous(memory_format=form), x.contiguous(memory_format=form)
        by_x, by_w, by_b = aten.native_group_norm_backward(
            g, x, mean, rstd, weight, samples, channels, places, groups, mask
        )
    if needs[2] and weight is None:
        by_b = g.sum(all_but_channels(g.dim()))
    return by_x, by_w, by_b


def recorded_group_statistics(x, groups, eps, like):
    return recorded_statistics(x.reshape(grouped_shape(x.shape, groups)), [2, 3], eps, like)


def forward_group_norm(input, num_groups, weight, bias, eps, cudnn_enabled):
    samples, channels = input.shape[:2]
    if num_groups <= 0 or channels % num_groups or (weight is not None and weight.shape != (channels,)):
        return torch.group_norm(input, num_groups, weight, bias, eps, cudnn_enabled), {}  # torch says what is wrong
    input, weight, bias = autocast_to_single(input, weight, bias)
    input = input.contiguous(memory_format=layout(input))
    places = math.prod(input.shape[2:])
    result, mean, rstd = torch.native_group_norm(input, weight, bias, samples, channels, places, num_groups, eps)
    return result, {"mean": mean, "rstd": rstd}


@backward(torch.group_norm, wrt=BY, forward=forward_group_norm)
def group_norm(grad, input, num_groups, weight, mean, rstd, eps, needs):
    (input,) = in_dtype_of(grad, input)
    if torch.is_grad_enabled():
        mean, rstd = recorded_group_statistics(input, num_groups, eps, mean)
    return group_gradients(grad, input, num_groups, weight, mean, rstd, needs)


def forward_native_group_norm(*args):
    result = torch.native_group_norm(*args)
    return result, {"mean": result[1], "rstd": result[2]}


@backward(torch.native_group_norm, wrt=BY, forward=forward_native_group_norm)
def native_group_norm(grad, input, weight, group, mean, rstd, eps, needs):
    g, by_mean, by_rstd = grad
    if torch.is_grad_enabled():
        mean, rstd = recorded_group_statistics(input, group, eps, mean)
    by_x = by_w = by_b = None
    if g is not None:
        by_x, by_w, by_b = group_gradients(g, input, group, weight, mean, rstd, needs)
    if needs[0]:
        x = input.reshape(grouped_shape(input.shape, group))
        mean, rstd, *by = (None if t is None else t[:, :, None, None] for t in (mean, rstd, by_mean, by_rstd))
        through = through_statistics(x, mean, rstd, [2, 3], *by)
        by_x = total(by_x, None if through is None else through.reshape(input.shape))
    return by_x, by_w, by_b


@backward(aten.native_group_norm_backward, wrt=("grad_out", "input", "weight", "mean", "rstd"))
def native_group_norm_backward(grad, grad_out, input, mean, rstd, weight, group, output_mask, needs):
    shape = grouped_shape(input.shape, group)
    v, a, b = per_result(grad, output_mask)
    v, g, x = (None if t is None else t.reshape(shape) for t in (v, grad_out, input))
    weight, a, b = (None if t is None else t.reshape(1, group, -1, 1) for t in (weight, a, b))
    mean, rstd = mean.reshape(*shape[:2], 1, 1), rstd.reshape(*shape[:2], 1, 1)
    found = cross(g, x, mean, rstd, weight, [2, 3], (v, a, b))
    by_g, by_x, by_weight, by_mean, by_rstd = (f if needed else None for f, needed in zip(found, needs, strict=True))
    return (
        None if by_g is None else by_g.expand(shape).reshape(input.shape),
        None if by_x is None else by_x.reshape(input.shape),
        None if by_weight is None else by_weight.sum([0, 3]).reshape(-1),
        None if by_mean is None else by_mean.sum([2, 3]),
        None if by_rstd is None else by_rstd.sum([2, 3]),
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
    by_x = by_w = None
    if needs[0]:
        h = grad if weight is None else grad * conj(weight)
        by_x = r * (h - normal * (normal * h).mean(dims, keepdim=True))
    if needs[1]:
        by_w = grad * normal
    return by_x, by_w


@decomposition(torch._fused_rms_norm)
def fused_rms_norm(input, normalized_shape, weight, eps):
    x = wide(input)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = ((x * x).mean(last_dims(x, normalized_shape), keepdim=True) + eps).rsqrt()
    return torch.rms_norm(input, normalized_shape, weight, eps), rstd
