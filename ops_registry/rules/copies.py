"""Copies and conversions: clone, contiguous, copy_, to another dtype, device or layout of memory."""

import torch

from ops_registry.declare import no_gradient, passes_through, zero_gradient
from ops_registry.registry import backward, decomposition

# The value stays what it is, so the gradient does too: the dtype is projected, the device is put back here.

passes_through(torch.clone, torch.Tensor.contiguous, torch.Tensor.pin_memory)
passes_through(torch.ops.aten.alias, torch.ops.aten.lift, torch.ops.aten.lift_fresh)
passes_through(torch.Tensor.double, torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
passes_through(torch.Tensor.cdouble, torch.Tensor.cfloat, torch.Tensor.chalf)


@backward(torch.Tensor.to, torch.ops.aten._to_copy, torch.Tensor.type, torch.Tensor.cpu, torch.Tensor.cuda, linear=True)
def to(grad, input_device):
    return grad.to(input_device)


@decomposition(torch.Tensor.type_as)
def type_as(input, other):
    return input.to(other.device, other.dtype)


# Copying into a tensor: what was there before has no influence any more.

zero_gradient(torch.Tensor.copy_)


@backward(torch.Tensor.copy_, wrt="src")
def copy_source(grad, src_device):
    return grad.to(src_device)


no_gradient(
    torch.Tensor.bool,
    torch.Tensor.byte,
    torch.Tensor.char,
    torch.Tensor.int,
    torch.Tensor.long,
    torch.Tensor.short,
)
