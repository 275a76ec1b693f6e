"""Losses that ask for a margin between what belongs together and what does not."""

import torch

from ops_registry.declare import zero_gradient
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj
from ops_registry.shared.loss_reduction import NONE, reduce_grad, reduce_loss, spread_reduction
from ops_registry.shared.precision import wide

aten = torch.ops.aten
nn = torch._C._nn


# soft_margin_loss: log(1 + exp(-y x)). torch's fused kernel divides inf by inf where the margin is missed by far.


@backward(nn.soft_margin_loss, wrt=("input", "target"))
def soft_margin_loss(grad, input, target, reduction, needs):
    slope = -conj((-wide(target) * input).sigmoid())
    slope = slope * spread_reduction(grad, reduction, slope.shape)
    return slope * conj(target) if needs.input else None, slope * conj(input) if needs.target else None


# multi_margin_loss: the mean over the classes i other than the target y of weight[y] max(0, margin - x[y] + x[i])^p


@backward(nn.multi_margin_loss, wrt="input")
def multi_margin_loss(grad, input, target, p, margin, weight, reduction):
    return aten.multi_margin_loss_backward(grad, input, target, p, margin, weight, reduction)


@backward(aten.multi_margin_loss_backward, wrt="grad_output", linear=True)
def multi_margin_loss_backward(grad, input, target, p, margin, weight, reduction):
    if input.dim() == 0:
        return None  # there is no other class
    ones = torch.ones_like(grad.select(-1, 0))
    slope = aten.multi_margin_loss_backward(ones, input, target, p, margin, weight, NONE)
    return reduce_grad((grad * slope).sum(-1), reduction)


@backward(aten.multi_margin_loss_backward, wrt="input")
def multi_margin_loss_backward_input(grad, grad_output, input, target, p, margin, weight, reduction):
    if p == 1 or input.dim() == 0:
        return None
    target = target.reshape(*input.shape[:-1], 1)
    violated = (margin - input.gather(-1, target) + input > 0).scatter(-1, target, False)
    terms = torch.where(violated, grad - grad.gather(-1, target), 0)
    terms = terms.scatter(-1, target, -terms.sum(-1, keepdim=True))
    if weight is not None:
        terms = terms * weight[target]
    each = spread_reduction(grad_output, reduction, input.shape[:-1]).unsqueeze(-1)
    return 2 / input.shape[-1] * terms * each


# multilabel_margin_loss: the mean over pairs of a label and another class of max(0, 1 - x[label] + x[other])


def multilabel_margin_forward(input, target, reduction):
    """The loss, with the mask of the classes that are labels as by-product."""
    result, is_target = aten.multilabel_margin_loss_forward(input, target, reduction)
    return result, {"is_target": is_target}


@backward(nn.multilabel_margin_loss, wrt="input", forward=multilabel_margin_forward)
def multilabel_margin_loss(grad, input, target, reduction, is_target):
    return aten.multilabel_margin_loss_backward(grad, input, target, reduction, is_target)


@backward(aten.multilabel_margin_loss_backward, wrt="grad_output", linear=True)
def multilabel_margin_loss_backward(grad, input, target, reduction, is_target):
    ones = torch.ones_like(grad.select(-1, 0) if grad.dim() else grad)
    slope = aten.multilabel_margin_loss_backward(ones, input, target, NONE, is_target)
    return reduce_grad((grad * slope).sum(-1), reduction)


zero_gradient(aten.multilabel_margin_loss_backward, wrt="input")  # the loss is piecewise linear


# Losses that torch itself builds from smaller ops


@decomposition(torch.margin_ranking_loss)
def margin_ranking_loss(input1, input2, target, margin, reduction):
    return reduce_loss((margin - target * (input1 - input2)).clamp_min(0), reduction)


@decomposition(torch.hinge_embedding_loss)
def hinge_embedding_loss(input, target, margin, reduction):
    similar = torch.where(target != -1, input, 0)
    different = torch.where(target != 1, (margin - input).clamp_min(0), 0)
    return reduce_loss(similar + different, reduction)


@decomposition(torch.cosine_embedding_loss)
def cosine_embedding_loss(input1, input2, target, margin, reduction):
    if not input1.dim() == input2.dim() == target.dim() + 1:
        raise UnsupportedCallError(
            f"cosine_embedding_loss takes inputs of one dimension more than the target: got {tuple(input1.shape)}, "
            f"{tuple(input2.shape)} and the target {tuple(target.shape)}"
        )
    tiny = 1e-12
    squares = ((input1 * input1).sum(-1) + tiny) * ((input2 * input2).sum(-1) + tiny)
    cosine = (input1 * input2).sum(-1) / squares.sqrt()
    similar = torch.where(target == 1, 1 - cosine, 0)
    different = torch.where(target == -1, (cosine - margin).clamp_min(0), 0)
    return reduce_loss(similar + different, reduction)


@decomposition(torch.triplet_margin_loss)
def triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction):
    if not anchor.dim() == positive.dim() == negative.dim():
        raise UnsupportedCallError(
            f"triplet_margin_loss takes three tensors of as many dimensions: got {tuple(anchor.shape)}, "
            f"{tuple(positive.shape)} and {tuple(negative.shape)}"
        )
    near = torch.linalg.vector_norm(anchor - positive + eps, p, -1)
    far = torch.linalg.vector_norm(anchor - negative + eps, p, -1)
    if swap:
        far = torch.minimum(far, torch.linalg.vector_norm(positive - negative + eps, p, -1))
    return reduce_loss((margin + near - far).clamp_min(0), reduction)
