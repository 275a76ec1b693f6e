"""Sorting, and elements selected by rank: the gradient goes to the element that each value came from."""

import torch

from ops_registry.declare import no_gradient
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.masks import share_among_ties
from ops_registry.shared.picking import put_back

aten = torch.ops.aten


@backward(aten.sort.default, aten.sort.stable, torch.topk)
def ordered(grad, input_shape, indices, dim):
    return put_back(grad, indices, input_shape, dim, True)


@backward(aten.value_selecting_reduction_backward, wrt="grad")
def value_selecting_reduction_backward(grad, dim, indices, keepdim):
    shape = grad.shape
    if keepdim or not shape:
        return grad.gather(dim, indices)
    return grad.gather(dim, indices.unsqueeze(dim)).squeeze(dim)


@overloaded(torch.sort)
def sort(*args, **kwargs):
    return aten.sort.stable if "stable" in kwargs else aten.sort.default


@decomposition(torch.msort)
def msort(input):
    return torch.sort(input, 0)[0]


@backward(torch.kthvalue, torch.mode, aten.median.dim, aten.nanmedian.dim)
def picked_along_dim(grad, input_shape, indices, dim, keepdim):
    return put_back(grad, indices, input_shape, dim, keepdim)


@backward(aten.median.default)
def median_of_all(grad, input, result):
    # One nan in the input makes the result nan: then the nans are what it came from.
    return share_among_ties(grad, (input == result) | (input != input), None)


@backward(aten.nanmedian.default)
def nanmedian_of_all(grad, input, result):
    return share_among_ties(grad, (input == result) | ((input != input) & (result != result)), None)


@overloaded(torch.median)
def median(*args, **kwargs):
    return aten.median.default if len(args) + len(kwargs) == 1 else aten.median.dim


@overloaded(torch.nanmedian)
def nanmedian(*args, **kwargs):
    return aten.nanmedian.default if len(args) + len(kwargs) == 1 else aten.nanmedian.dim


no_gradient(torch.argsort)
