"""Values rounded to what an integer type could hold, for training that is aware of quantisation.

Rounding is passed over as if it were the identity (a straight-through estimator): an element that lies in the range keeps its
gradient, one that was clamped has none.
"""

import torch

from ops_registry.registry import backward

aten = torch.ops.aten


def forward_per_tensor(input, scale, zero_point, quant_min, quant_max):
    if isinstance(scale, torch.Tensor):
        enabled = torch.ones(1, dtype=torch.long, device=input.device)
        cachemask = torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        result, inside = cachemask(input, scale, zero_point, enabled, quant_min, quant_max)
    else:
        result, inside = aten.fake_quantize_per_tensor_affine_cachemask(input, scale, zero_point, quant_min, quant_max)
    return result, {"inside": inside}


def forward_per_channel(*args):
    result, inside = aten.fake_quantize_per_channel_affine_cachemask(*args)
    return result, {"inside": inside}


def forward_observed(*args):
    result, inside = torch._fused_moving_avg_obs_fq_helper(*args)
    return result, {"inside": inside}


@backward(torch.fake_quantize_per_tensor_affine, forward=forward_per_tensor, symmetric=True)
@backward(torch.fake_quantize_per_channel_affine, forward=forward_per_channel, symmetric=True)
@backward(torch.fused_moving_avg_obs_fake_quant, forward=forward_observed, symmetric=True)
def fake_quantize(grad, inside):
    return grad * inside


# Learnable scale s and zero point z. In the range the result is s (q - z) with the rounded q = x / s + z, beyond it s (bound - z).

INPUTS = ("input", "scale", "zero_point")


def learnable(grad, input, s, z, quant_min, quant_max):
    """The gradients of the input and, element by element, of its scale and its zero point."""
    z = z.round().clamp(quant_min, quant_max)
    rounded = (input / s + z).round()
    inside = (rounded >= quant_min) & (rounded <= quant_max)
    level = rounded.clamp(quant_min, quant_max) - z
    grad_scale = grad * torch.where(inside, level - input / s, level)
    return grad * inside, grad_scale, torch.where(inside, 0, -(grad * s))


@backward(torch._fake_quantize_learnable_per_tensor_affine, wrt=INPUTS)
def learnable_per_tensor(grad, input, scale, zero_point, quant_min, quant_max, grad_factor):
    grad_input, *others = learnable(grad, input, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    return grad_input, *((grad.sum() * grad_factor).reshape(scale.shape) for grad in others)


@backward(torch._fake_quantize_learnable_per_channel_affine, wrt=INPUTS)
def learnable_per_channel(grad, input, scale, zero_point, axis, quant_min, quant_max, grad_factor):
    last = grad.movedim(axis, -1), input.movedim(axis, -1)
    grad_input, *others = learnable(*last, scale, zero_point, quant_min, quant_max)
    return grad_input.movedim(-1, axis), *(grad.reshape(-1, scale.shape[0]).sum(0) * grad_factor for grad in others)
