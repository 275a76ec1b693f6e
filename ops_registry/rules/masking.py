"""Filling, selecting and writing elements by a mask."""

import torch

from ops_registry.registry import backward
from ops_registry.shared.dimensions import broadcast_shape


@backward(torch.masked_fill, torch.masked_scatter, wrt="input", symmetric=True)
def masked_input(grad, mask):
    return grad.masked_fill(mask, 0)


@backward(torch.masked_fill, wrt="value", linear=[("input", "value")])
def masked_fill_value(grad, mask, value_device):
    return torch.where(mask, grad, 0).sum().to(value_device)


@backward(torch.masked_select, linear=True)
def masked_select(grad, input_shape, mask):
    shape = broadcast_shape(input_shape, mask.shape)
    return grad.new_zeros(shape).masked_scatter(mask, grad)


@backward(torch.masked_scatter, wrt="source", linear=[("input", "source")])
def masked_scatter_source(grad, mask, source_shape):
    used = grad.masked_select(mask)
    rest = source_shape.numel() - used.numel()  # the source may have more elements than the mask selects
    return torch.cat((used, used.new_zeros(rest))).view(source_shape)
