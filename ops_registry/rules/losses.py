"""Losses of the difference of input and target, and what all losses share.

A fused backward kernel is linear in its ``grad_output``, whose gradient is the kernel itself, reduced as the loss.
"""

import math

import torch

from ops_registry.registry import backward

aten = torch.ops.aten
nn = torch._C._nn

#: How torch's C functions spell the argument ``reduction``.
NONE, MEAN, SUM = 0, 1, 2


def reduced(terms, reduction):
    """The loss, of its terms."""
    return terms.mean() if reduction == MEAN else terms.sum() if reduction == SUM else terms


def share(grad, reduction, shape):
    """The gradient of each of the terms, which have ``shape``, as a tensor that broadcasts to them."""
    return grad / math.prod(shape) if reduction == MEAN and 0 not in shape else grad


def gathered(terms, reduction):
    """What ``share`` sends back: the gradient of the gradient of the loss, of those of the terms (0 where there are none)."""
    return terms if reduction == NONE else share(terms.sum(), reduction, terms.shape)


def alike(input, target, dtype):
    """Both in their joint shape and of ``dtype``, as the fused kernels want them."""
    if input.shape != target.shape:
        shape = torch.broadcast_shapes(input.shape, target.shape)
        input, target = input.expand(shape), target.expand(shape)
    return input.to(dtype) if input.dtype != dtype else input, target.to(dtype) if target.dtype != dtype else target


def opposite(grad, needs):
    """The gradients of input and target, for a loss of their difference."""
    return grad if needs[0] else None, -grad if needs[1] else None


@backward(nn.mse_loss, wrt=("input", "target"))
def mse_loss(grad, input, target, reduction, needs):
    return opposite(aten.mse_loss_backward(grad, *alike(input, target, grad.dtype), reduction), needs)


@backward(nn.smooth_l1_loss, wrt=("input", "target"))
def smooth_l1_loss(grad, input, target, reduction, beta, needs):
    return opposite(aten.smooth_l1_loss_backward(grad, *alike(input, target, grad.dtype), reduction, beta), needs)


@backward(nn.huber_loss, wrt=("input", "target"))
def huber_loss(grad, input, target, reduction, delta, needs):
    return opposite(aten.huber_loss_backward(grad, *alike(input, target, grad.dtype), reduction, delta), needs)


@backward(nn.l1_loss, wrt=("input", "target"))
def l1_loss(grad, input, target, reduction, needs):
    difference = input - target
    return opposite(share(grad, reduction, difference.shape) * difference.sgn(), needs)


@backward(aten.mse_loss_backward, wrt="grad_output")
def mse_loss_backward(grad, input, target, reduction):
    return gathered(aten.mse_loss_backward(grad, input, target, NONE), reduction)


@backward(aten.mse_loss_backward, wrt=("input", "target"))
def mse_loss_backward_inputs(grad, grad_output, reduction, needs):
    return opposite(2 * grad * share(grad_output, reduction, grad.shape), needs)


@backward(aten.smooth_l1_loss_backward, wrt="grad_output")
def smooth_l1_loss_backward(grad, input, target, reduction, beta):
    return gathered(aten.smooth_l1_loss_backward(grad, input, target, NONE, beta), reduction)


@backward(aten.smooth_l1_loss_backward, wrt=("input", "target"))
def smooth_l1_loss_backward_inputs(grad, grad_output, input, target, reduction, beta, needs):
    near = (input - target).abs() < beta
    return opposite(torch.where(near, grad * share(grad_output, reduction, grad.shape) / (beta or 1), 0), needs)


@backward(aten.huber_loss_backward, wrt="grad_output")
def huber_loss_backward(grad, input, target, reduction, delta):
    return gathered(aten.huber_loss_backward(grad, input, target, NONE, delta), reduction)


@backward(aten.huber_loss_backward, wrt=("input", "target"))
def huber_loss_backward_inputs(grad, grad_output, input, target, reduction, delta, needs):
    near = (input - target).abs() < delta
    return opposite(torch.where(near, grad * share(grad_output, reduction, grad.shape), 0), needs)
