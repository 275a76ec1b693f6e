"""Losses that are negative logarithms of likelihoods: of a class, a yes or no, a distribution, a count."""

import functools
import math

import torch

from ops_registry.declare import zero_gradient
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import as_one, backward, decomposition
from ops_registry.shared.dimensions import broadcast_shape
from ops_registry.shared.loss_reduction import (
    MEAN,
    NONE,
    SUM,
    broadcast_pair,
    reduce_grad,
    reduce_loss,
    spread_reduction,
)
from ops_registry.shared.precision import wide
from ops_registry.shared.recorded import recorded
from ops_registry.torch_private import DisableTorchFunctionSubclass

aten = torch.ops.aten
nn = torch._C._nn


# nll_loss: -weight[target] input[target], divided by the sum of the weights for a mean

ALL_RANKS = range(1, 65)


def as_images(input, target):
    """An input of (N, C, d1, d2 …) and its target as the kernel for images takes them."""
    n, classes, *sizes = input.shape
    if len(sizes) != 2:
        sizes = 1, math.prod(sizes)
    return input.reshape(n, classes, *sizes).contiguous(), target.reshape(n, *sizes)


def nll_forward(op, ranks, input, target, weight, reduction, ignore_index):
    """The loss, and the sum of the weights as by-product. ``ranks`` are those of the inputs that ``op`` takes."""
    rank = input.dim()
    if rank not in ranks or (rank > 1 and target.shape != (input.shape[0], *input.shape[2:])):
        return op(input, target, weight, reduction, ignore_index), {}  # raises: torch says what does not fit
    if rank <= 2:
        result, total = aten.nll_loss_forward(input, target, weight, reduction, ignore_index)
    else:
        result, total = aten.nll_loss2d_forward(*as_images(input, target), weight, reduction, ignore_index)
        result = result.reshape(target.shape) if reduction == NONE else result
    return result, {"total_weight": total}


@backward(nn.nll_loss, wrt="input", forward=functools.partial(nll_forward, nn.nll_loss, (1, 2)), linear=True)
@backward(nn.nll_loss2d, wrt="input", forward=functools.partial(nll_forward, nn.nll_loss2d, (4,)), linear=True)
@backward(nn.nll_loss_nd, wrt="input", forward=functools.partial(nll_forward, nn.nll_loss_nd, ALL_RANKS), linear=True)
def nll_loss(grad, input, target, weight, reduction, ignore_index, total_weight):
    if input.dim() <= 2:
        return aten.nll_loss_backward(grad, input, target, weight, reduction, ignore_index, total_weight)
    images, labels = as_images(input, target)
    grad = grad.reshape(labels.shape) if reduction == NONE else grad
    grad = aten.nll_loss2d_backward(grad, images, labels, weight, reduction, ignore_index, total_weight)
    return grad.reshape(input.shape)


@backward(aten.nll_loss_backward, wrt="grad_output", linear=True)
def nll_loss_backward(grad, target, weight, reduction, ignore_index):
    return nn.nll_loss(grad, target, weight, reduction, ignore_index)


@backward(aten.nll_loss2d_backward, wrt="grad_output", linear=True)
def nll_loss2d_backward(grad, target, weight, reduction, ignore_index):
    return nn.nll_loss2d(grad, target, weight, reduction, ignore_index)


zero_gradient(aten.nll_loss_backward, aten.nll_loss2d_backward, wrt="input")  # the loss is linear


# cross_entropy: nll_loss of log_softmax. As one call for classes as target, without smoothing.


@decomposition(nn.cross_entropy_loss)
def cross_entropy_loss(input, target, weight, reduction, ignore_index, label_smoothing):
    with DisableTorchFunctionSubclass():
        shape, has_class_indices = input.shape, not target.is_floating_point()
        if (target.shape == shape) == has_class_indices or not 0 <= label_smoothing <= 1:
            raise UnsupportedCallError(
                f"cross_entropy takes as target class indices (integers) or a probability for each class (floating, in "
                f"the shape of the input), and label_smoothing from 0 to 1: got an input of shape {tuple(shape)}, a "
                f"{target.dtype} target of shape {tuple(target.shape)} and label_smoothing={label_smoothing}"
            )
    class_dim = 1 if len(shape) > 1 else 0
    log_p = torch.log_softmax(input, class_dim)
    if not has_class_indices:
        return probability_cross_entropy(log_p, target, weight, reduction, label_smoothing, class_dim)
    loss = nn.nll_loss_nd(log_p, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return loss
    # The smoothed part of the target gives each class the same probability.
    smooth = -weighted(log_p, along_class_dim(weight, class_dim, shape)).sum(class_dim)
    counted = target != ignore_index
    smooth = torch.where(counted, smooth, 0)
    if reduction != NONE:
        smooth = smooth.sum()
    if reduction == MEAN:
        weights = counted if weight is None else torch.where(counted, weight[torch.where(counted, target, 0)], 0)
        smooth = smooth / weights.sum()
    return (1 - label_smoothing) * loss + label_smoothing / shape[class_dim] * smooth


def forward_cross_entropy(input, target, weight, reduction, ignore_index, label_smoothing):
    if label_smoothing or target.is_floating_point() or (weight is not None and weight.requires_grad):
        return None
    rank = input.dim()
    if rank == 0 or target.shape != (input.shape[:1] * (rank > 1) + input.shape[2:]):
        return None
    log_p = torch.log_softmax(input, 1 if rank > 1 else 0)
    loss, by_products = nll_forward(nn.nll_loss_nd, ALL_RANKS, log_p, target, weight, reduction, ignore_index)
    return loss, {"log_p": log_p, **by_products}


# A softmax knows its argument up to a summand: log_p stands for it, and the input goes.
@as_one(nn.cross_entropy_loss, wrt=("input",), forward=forward_cross_entropy, stands_for={"log_p": "input"})
def cross_entropy(grad, log_p, target, weight, reduction, ignore_index, total_weight):
    class_dim = 1 if log_p.dim() > 1 else 0
    if recorded():
        log_p = torch.log_softmax(log_p, class_dim)
    grad = nll_loss(grad, log_p, target, weight, reduction, ignore_index, total_weight)
    return (torch._log_softmax_backward_data(grad, log_p, class_dim, log_p.dtype),)


def probability_cross_entropy(log_p, target, weight, reduction, label_smoothing, class_dim):
    """Cross entropy with a probability for each class as target."""
    shape = target.shape
    classes = shape[class_dim]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = weighted(log_p * target, along_class_dim(weight, class_dim, shape))
    if reduction == NONE:
        return -terms.sum(class_dim)
    total = -terms.sum()
    if reduction == SUM:
        return total
    return total / (math.prod(shape) // classes) if 0 not in shape else total * math.nan


def along_class_dim(weight, dim, shape):
    """``weight`` shaped to lie along ``dim`` of a tensor of ``shape``."""
    if weight is None:
        return None
    if weight.shape != shape[dim : dim + 1]:
        raise UnsupportedCallError(
            f"cross_entropy of {shape[dim]} classes was given weights of shape {tuple(weight.shape)}"
        )
    return weight.view(-1, *[1] * (len(shape) - dim - 1))


def weighted(terms, weight):
    """The terms of a loss times their weights, if there are any."""
    return terms if weight is None else terms * weight


# binary_cross_entropy: -(t log x + (1 - t) log(1 - x)), where the logarithms are clamped at -100


@backward(nn.binary_cross_entropy, wrt="input")
def binary_cross_entropy(grad, input, target, weight, reduction):
    require_broadcast_target(input.shape, target.shape)
    return aten.binary_cross_entropy_backward(grad, *broadcast_pair(input, target, grad.dtype), weight, reduction)


@backward(nn.binary_cross_entropy, wrt="target")
def binary_cross_entropy_target(grad, input, target_shape, weight, reduction):
    require_broadcast_target(input.shape, target_shape)
    input = wide(input)
    terms = (1 - input).log().clamp_min(-100) - input.log().clamp_min(-100)
    return (weighted(terms, weight) * spread_reduction(grad, reduction, input.shape)).expand(input.shape)


def require_broadcast_target(shape, target_shape):
    """Refuse a target whose shape is not that of the last dimensions of the input: torch drops dimensions of length 1 from both first."""
    last = tuple(target_shape)
    while last[:1] == (1,):
        last = last[1:]
    repeated = len(target_shape) <= len(shape) and last == tuple(shape[len(shape) - len(last) :])
    if shape != target_shape and not repeated:
        raise UnsupportedCallError(
            f"binary_cross_entropy of an input of shape {tuple(shape)} and a target of shape {tuple(target_shape)}: torch does not "
            f"broadcast these as it does elsewhere. Expand both to one shape: torch.broadcast_tensors(input, target)."
        )


@backward(aten.binary_cross_entropy_backward, wrt="grad_output", linear=True)
def binary_cross_entropy_backward(grad, input, target, weight, reduction):
    return reduce_grad(aten.binary_cross_entropy_backward(grad, input, target, weight, NONE), reduction)


@backward(aten.binary_cross_entropy_backward, wrt="input", symmetric=True)
def binary_cross_entropy_backward_input(grad, grad_output, input, target, weight, reduction):
    # The derivative of (x - t) / (x (1 - x)), whose denominator torch clamps at 1e-12.
    x, t = input, target
    terms = grad * (x * x - 2 * x * t + t) / (x * (1 - x)).clamp_min(1e-12).square()
    return weighted(terms, weight) * spread_reduction(grad_output, reduction, grad.shape)


@backward(aten.binary_cross_entropy_backward, wrt="target", symmetric=True)
def binary_cross_entropy_backward_target(grad, grad_output, input, weight, reduction):
    terms = -grad / (input * (1 - input)).clamp_min(1e-12)
    return weighted(terms, weight) * spread_reduction(grad_output, reduction, grad.shape)


# binary_cross_entropy_with_logits: (1 - t) x + (1 + (q - 1) t) log(1 + exp(-x)), with q the weight of positives


@backward(torch.binary_cross_entropy_with_logits, wrt="input")
def binary_cross_entropy_with_logits(grad, input, target, weight, pos_weight, reduction):
    if pos_weight is None and weight is None:  # grad (sigmoid - t): half the gradient of a squared error, in one pass
        grad, p = wide(grad), wide(input).sigmoid()
        return aten.mse_loss_backward(grad / 2, *broadcast_pair(p, target, grad.dtype), reduction)
    grad = spread_reduction(grad, reduction, target.shape)
    if pos_weight is None:
        return weighted(input.sigmoid() - target, weight) * grad
    counted = torch.addcmul(torch.ones_like(pos_weight), pos_weight - 1, target)  # q t + 1 - t
    return weighted(torch.addcmul(counted * input.sigmoid(), pos_weight, target, value=-1), weight) * grad


@backward(torch.binary_cross_entropy_with_logits, wrt="target")
def binary_cross_entropy_with_logits_target(grad, input, target_shape, weight, pos_weight, reduction):
    terms = -input if pos_weight is None else (1 - pos_weight) * nn.log_sigmoid(input) - input
    return (weighted(terms, weight) * spread_reduction(grad, reduction, target_shape)).expand(target_shape)


# kl_div: t (log t - x), or exp(t) (t - x) where the target holds logarithms


@backward(torch.kl_div, wrt="input")
def kl_div(grad, input_shape, target, reduction, log_target):
    shape = broadcast_shape(input_shape, target.shape)
    p = target.exp() if log_target else target
    return (-p * spread_reduction(grad, reduction, shape)).expand(shape)


@backward(torch.kl_div, wrt="target")
def kl_div_target(grad, input, target, reduction, log_target):
    target = wide(target)
    terms = target.exp() * (target - input + 1) if log_target else target.log() + 1 - input
    return terms * spread_reduction(grad, reduction, terms.shape)


@decomposition(torch.poisson_nll_loss)
def poisson_nll_loss(input, target, log_input, full, eps, reduction):
    terms = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:  # Stirling's approximation of log(target!)
        stirling = target * target.log() - target + (2 * math.pi * target).log() / 2
        terms = terms + torch.where(target > 1, stirling, 0)
    return reduce_loss(terms, reduction)
