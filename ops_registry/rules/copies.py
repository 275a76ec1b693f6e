"""Copies and conversions: clone, contiguous, to another dtype, device or layout of memory."""

import torch

from ops_registry.declare import no_gradient
from ops_registry.registry import backward, decomposition

# The value stays what it is, so the gradient does too: the dtype is projected, the device is put back here.


@backward(torch.clone)
def clone(grad):
    return grad


@backward(torch.Tensor.contiguous)
def contiguous(grad):
    return grad


@backward(torch.ops.aten.alias)
def alias(grad):
    return grad


@backward(torch.ops.aten.lift)
def lift(grad):
    return grad


@backward(torch.ops.aten.lift_fresh)
def lift_fresh(grad):
    return grad


@backward(torch.Tensor.to)
def to(grad, input_device):
    return grad.to(input_device)


@backward(torch.ops.aten._to_copy)
def _to_copy(grad, input_device):
    return grad.to(input_device)


@backward(torch.Tensor.type)
def type(grad, input_device):
    return grad.to(input_device)


@decomposition(torch.Tensor.type_as)
def type_as(input, other):
    return input.to(other.device, other.dtype)


@backward(torch.Tensor.cpu)
def cpu(grad, input_device):
    return grad.to(input_device)


@backward(torch.Tensor.cuda)
def cuda(grad, input_device):
    return grad.to(input_device)


@backward(torch.Tensor.pin_memory)
def pin_memory(grad):
    return grad


def _same(grad):
    return grad


for _convert in (
    torch.Tensor.double,
    torch.Tensor.float,
    torch.Tensor.half,
    torch.Tensor.bfloat16,
    torch.Tensor.cdouble,
    torch.Tensor.cfloat,
    torch.Tensor.chalf,
):
    backward(_convert)(_same)

no_gradient(
    torch.Tensor.bool,
    torch.Tensor.byte,
    torch.Tensor.char,
    torch.Tensor.int,
    torch.Tensor.long,
    torch.Tensor.short,
)
