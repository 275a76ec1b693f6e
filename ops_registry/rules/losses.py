"""Losses of the difference of input and target."""

import torch

from ops_registry.registry import backward
from ops_registry.shared.loss_reduction import NONE, broadcast_pair, reduce_grad, spread_reduction

aten = torch.ops.aten
nn = torch._C._nn


def input_and_target(grad, needs):
    """The gradients of input and target, for a loss of their difference."""
    return grad if needs.input else None, -grad if needs.target else None


@backward(nn.mse_loss, wrt=("input", "target"))
def mse_loss(grad, input, target, reduction, needs):
    return input_and_target(aten.mse_loss_backward(grad, *broadcast_pair(input, target, grad.dtype), reduction), needs)


@backward(nn.smooth_l1_loss, wrt=("input", "target"))
def smooth_l1_loss(grad, input, target, reduction, beta, needs):
    return input_and_target(
        aten.smooth_l1_loss_backward(grad, *broadcast_pair(input, target, grad.dtype), reduction, beta), needs
    )


@backward(nn.huber_loss, wrt=("input", "target"))
def huber_loss(grad, input, target, reduction, delta, needs):
    return input_and_target(
        aten.huber_loss_backward(grad, *broadcast_pair(input, target, grad.dtype), reduction, delta), needs
    )


@backward(nn.l1_loss, wrt=("input", "target"))
def l1_loss(grad, input, target, reduction, needs):
    difference = input - target
    return input_and_target(spread_reduction(grad, reduction, difference.shape) * difference.sgn(), needs)


@backward(aten.mse_loss_backward, wrt="grad_output", linear=True)
def mse_loss_backward(grad, input, target, reduction):
    return reduce_grad(aten.mse_loss_backward(grad, input, target, NONE), reduction)


@backward(aten.mse_loss_backward, wrt=("input", "target"), symmetric=True)
def mse_loss_backward_inputs(grad, grad_output, reduction, needs):
    return input_and_target(2 * grad * spread_reduction(grad_output, reduction, grad.shape), needs)


@backward(aten.smooth_l1_loss_backward, wrt="grad_output", linear=True)
def smooth_l1_loss_backward(grad, input, target, reduction, beta):
    return reduce_grad(aten.smooth_l1_loss_backward(grad, input, target, NONE, beta), reduction)


@backward(aten.smooth_l1_loss_backward, wrt=("input", "target"), symmetric=True)
def smooth_l1_loss_backward_inputs(grad, grad_output, input, target, reduction, beta, needs):
    near = (input - target).abs() < beta
    return input_and_target(
        torch.where(near, grad * spread_reduction(grad_output, reduction, grad.shape) / (beta or 1), 0), needs
    )


@backward(aten.huber_loss_backward, wrt="grad_output", linear=True)
def huber_loss_backward(grad, input, target, reduction, delta):
    return reduce_grad(aten.huber_loss_backward(grad, input, target, NONE, delta), reduction)


@backward(aten.huber_loss_backward, wrt=("input", "target"), symmetric=True)
def huber_loss_backward_inputs(grad, grad_output, input, target, reduction, delta, needs):
    near = (input - target).abs() < delta
    return input_and_target(torch.where(near, grad * spread_reduction(grad_output, reduction, grad.shape), 0), needs)
