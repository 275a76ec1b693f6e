"""Sorting, and elements selected by rank: the gradient goes to the element that each value came from."""

import torch

from ops_registry.declare import no_gradient
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.picking import put_back

aten = torch.ops.aten


@backward(aten.sort.default, aten.sort.stable, torch.topk)
def ordered(grad, input_shape, indices, dim):
    return put_back(grad, indices, input_shape, dim, True)


@backward(aten.value_selecting_reduction_backward, wrt="grad", linear=True)
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


@backward(torch.kthvalue)
def kthvalue(grad, input_shape, indices, dim, keepdim):
    return put_back(grad, indices, input_shape, dim, keepdim)


no_gradient(torch.argsort)
