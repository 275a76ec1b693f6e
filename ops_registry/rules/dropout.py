"""Dropout in all its forms. The random stream is torch's; what is saved of it is one bool for each number drawn.

With ``p = 0``, outside training and for empty tensors torch hands the input back as it is, so nothing is drawn or saved
then; nor with ``p = 1``, where nothing survives.
"""

import functools
import math

import torch

from ops_registry.registry import backward
from ops_registry.shared.masks import zeros_and_ones
from ops_registry.torch_private import batch_level_of, is_batched, transform_level

#: scale * alpha of SELU: a dropped value becomes its negative, before mean and variance are put back.
SELU_FLOOR = 1.7580993408473766


def is_random(input, p, train):
    """Whether torch draws random numbers in this call; not in an invalid one, of which torch says what is wrong."""
    return train and 0 < p < 1 and input.numel() > 0


def noise_per_value(input):
    return torch.empty_like(input)


def noise_per_channel(input):
    return input.new_empty([d if i < 2 else 1 for i, d in enumerate(input.shape)])


def drawn(noise, p):
    """``noise`` filled with zeros and ones, or, where it is the same for a batch of which each is to draw its own, that batch."""
    level = transform_level()
    if level is None or (is_batched(noise) and batch_level_of(noise) == level):
        return noise.bernoulli_(p)
    return torch.bernoulli(noise, p)


def drop(input, p):
    """``input`` times noise that is 0 with probability ``p`` and 1 / (1 - p) otherwise; with it, where it is not 0."""
    if input.is_cuda:
        return torch.native_dropout(input, p, True)
    noise = drawn(noise_per_value(input), 1 - p)
    mask = noise.bool()
    return noise.div_(1 - p).mul_(input), mask


def times_mask(grad, mask, scale):
    """``grad`` times the noise that ``mask`` stands for: ``scale`` where it holds, 0 elsewhere."""
    noise = zeros_and_ones(mask, grad.dtype)
    if noise.shape != grad.shape:
        return grad * (noise * scale)
    return torch.addcmul(grad.new_zeros(()), grad, noise, value=scale)


def without_mask(grad, train, p):
    """The gradient of a call that drew no numbers."""
    return grad * 0 if train and p == 1 else grad


def forward_dropout(input, p, train):
    if not is_random(input, p, train):
        return torch.dropout(input, p, train), {"mask": None}
    result, mask = drop(input, p)
    return result, {"mask": mask}


@backward(torch.dropout, forward=forward_dropout, symmetric=True)
def dropout(grad, mask, p, train):
    return without_mask(grad, train, p) if mask is None else times_mask(grad, mask, 1 / (1 - p))


def forward_feature_dropout(input, p, train):
    if not is_random(input, p, train) or input.dim() < 2:
        return torch.feature_dropout(input, p, train), {"mask": None}
    noise = drawn(noise_per_channel(input), 1 - p)
    return input * (noise / (1 - p)), {"mask": noise.bool()}


@backward(torch.feature_dropout, forward=forward_feature_dropout, symmetric=True)
def feature_dropout(grad, mask, p, train):
    return without_mask(grad, train, p) if mask is None else times_mask(grad, mask, 1 / (1 - p))


# Alpha dropout: x -> a (m x + (m - 1) floor + p floor) with a bool mask m has the mean and variance of x ~ N(0, 1).


def slope(p):
    return 1 / math.sqrt((SELU_FLOOR**2 * p + 1) * (1 - p))


def forward_alpha(func, make_noise, least_rank, input, p, train):
    if not is_random(input, p, train) or input.dim() < least_rank:
        return func(input, p, train), {"mask": None}
    a = slope(p)
    noise = drawn(make_noise(input), 1 - p)
    mask = noise.bool()
    offset = noise.add(-1).mul_(SELU_FLOOR * a).add_(SELU_FLOOR * a * p)
    return (input * noise.mul_(a)).add_(offset), {"mask": mask}


@backward(
    torch.alpha_dropout,
    forward=functools.partial(forward_alpha, torch.alpha_dropout, noise_per_value, 0),
    symmetric=True,
)
def alpha_dropout(grad, mask, p, train):
    return without_mask(grad, train, p) if mask is None else times_mask(grad, mask, slope(p))


@backward(
    torch.feature_alpha_dropout,
    forward=functools.partial(forward_alpha, torch.feature_alpha_dropout, noise_per_channel, 2),
    symmetric=True,
)
def feature_alpha_dropout(grad, mask, p, train):
    return without_mask(grad, train, p) if mask is None else times_mask(grad, mask, slope(p))


# native_dropout returns its mask, and may be told to train by None.


def forward_native_dropout(input, p, train):
    result = torch.native_dropout(input, p, train)
    return result, {"mask": result[1]}


@backward(torch.native_dropout, forward=forward_native_dropout, symmetric=True)
def native_dropout(grad, mask, p, train):
    if train is False:
        return grad
    return times_mask(grad, mask, 0.0 if p == 1 else 1 / (1 - p))


@backward(torch.ops.aten.native_dropout_backward, wrt="grad_output", symmetric=True)
def native_dropout_backward(grad, mask, scale):
    return times_mask(grad, mask, scale)
