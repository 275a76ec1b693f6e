"""Largest and smallest elements: of a tensor, along a dimension, of two tensors. Ties share, except where an index names the element."""

import torch

from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.dimensions import restore_dims
from ops_registry.shared.masks import share_among_ties
from ops_registry.shared.optional import total
from ops_registry.shared.picking import put_back

aten = torch.ops.aten


@backward(aten.max.default, aten.min.default)
def extreme_of_all(grad, input, result):
    # One nan in the input makes the result nan: then the nans are what it came from.
    return share_among_ties(grad, (input == result) | (input != input), None)


@backward(aten.max.dim, aten.min.dim)
def extreme_along_dim(grad, input_shape, indices, dim, keepdim):
    return put_back(grad, indices, input_shape, dim, keepdim)


@decomposition(aten.max.other)
def max_other(input, other):
    return torch.maximum(input, other)


@decomposition(aten.min.other)
def min_other(input, other):
    return torch.minimum(input, other)


def _overload(packet):
    def choose(input, dim=None, keepdim=False, **named):
        if "other" in named or isinstance(dim, torch.Tensor):
            return packet.other
        return packet.default if dim is None and "axis" not in named else packet.dim

    return choose


overloaded(torch.max)(_overload(aten.max))
overloaded(torch.min)(_overload(aten.min))


@backward(torch.amax, torch.amin)
def extreme(grad, input, input_shape, result, dim, keepdim):
    ties = input == restore_dims(result, input_shape, dim, keepdim)
    return share_among_ties(restore_dims(grad, input_shape, dim, keepdim), ties, dim)


@backward(torch.aminmax)
def aminmax(grad, input, input_shape, min, max, dim, keepdim):
    keepdim = keepdim or dim is None
    return total(
        *(
            None if part is None else extreme(part, input, input_shape, found, dim, keepdim)
            for part, found in zip(grad, (min, max), strict=True)
        )
    )


# maximum and minimum: at a tie each side takes half; a nan on either side is the result, and so counts as chosen


@backward(torch.maximum, wrt="input", symmetric=True)
def maximum_input(grad, input, other):
    return _chosen(grad, input < other, input == other)


@backward(torch.maximum, wrt="other", symmetric=True)
def maximum_other(grad, input, other):
    return _chosen(grad, input > other, input == other)


@backward(torch.minimum, wrt="input", symmetric=True)
def minimum_input(grad, input, other):
    return _chosen(grad, input > other, input == other)


@backward(torch.minimum, wrt="other", symmetric=True)
def minimum_other(grad, input, other):
    return _chosen(grad, input < other, input == other)


# fmax and fmin: a nan loses against a number; as in torch the first takes all of a tie


@backward(torch.fmax, wrt="input", symmetric=True)
def fmax_input(grad, input, other):
    return torch.where((input >= other) | other.isnan(), grad, 0)


@backward(torch.fmax, wrt="other", symmetric=True)
def fmax_other(grad, input, other):
    return torch.where((input >= other) | other.isnan(), 0, grad)


@backward(torch.fmin, wrt="input", symmetric=True)
def fmin_input(grad, input, other):
    return torch.where((input <= other) | other.isnan(), grad, 0)


@backward(torch.fmin, wrt="other", symmetric=True)
def fmin_other(grad, input, other):
    return torch.where((input <= other) | other.isnan(), 0, grad)


def _chosen(grad, passed_over, tie):
    return torch.where(passed_over, 0, torch.where(tie, grad / 2, grad))
