"""Reading and writing at places given by an index for each element: gather, scatter, take, put."""

import torch

from ops_registry.declare import passes_through
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, overloaded
from ops_registry.shared.conjugate import conj
from ops_registry.shared.decisions import anywhere
from ops_registry.shared.dimensions import fit
from ops_registry.shared.masks import zeros_and_ones
from ops_registry.shared.picking import add_at
from ops_registry.shared.precision import wide
from ops_registry.shared.recorded import recorded

# gather and scatter: one index for each element. Where the index is shorter than the source, the rest is not read.


@backward(torch.gather, linear=True)
def gather(grad, input_shape, dim, index, sparse_grad):
    if sparse_grad:
        return torch.ops.aten._gather_sparse_backward(grad.new_empty(1).expand(input_shape), dim, index, grad)
    return add_at(grad, index, input_shape, dim)


@backward(torch.take_along_dim, linear=True)
def take_along_dim(grad, input_shape, indices, dim):
    if dim is None:
        flat = _counted_from_start(indices.reshape(-1), input_shape.numel())
        return add_at(grad, flat, (input_shape.numel(),), 0).view(input_shape)
    dim = dim % len(input_shape)
    shape = grad.shape[:dim] + input_shape[dim : dim + 1] + grad.shape[dim + 1 :]
    return add_at(grad, _counted_from_start(indices, input_shape[dim]).expand(grad.shape), shape, dim)


def _counted_from_start(index, size):
    """``index`` with the negative ones, which count from the end, made positive: scatter takes none of them."""
    return torch.sub(index, index.clamp(-1, 0), alpha=size)


passes_through(torch.scatter_add, wrt="input")


@overloaded(torch.scatter)
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise UnsupportedCallError(
            "scatter: value= is a number and takes no gradient; pass a tensor of the index's shape as src="
        )
    if isinstance(src, torch.Tensor):
        return torch.ops.aten.scatter.src if reduce is None else torch.ops.aten.scatter.reduce
    return torch.ops.aten.scatter.value if reduce is None else torch.ops.aten.scatter.value_reduce


@backward(torch.ops.aten.scatter.src, torch.ops.aten.scatter.value, wrt="input", symmetric=True)
def scatter_input(grad, dim, index):
    return grad.scatter(dim, index, 0)


@backward(torch.ops.aten.scatter.src, torch.scatter_add, wrt="src", linear=[("input", "src")])
def scatter_src(grad, dim, index, src_shape):
    return fit(grad.gather(dim, index), src_shape)


@backward(torch.ops.aten.scatter.reduce, wrt=("input", "src"))
def scatter_with_reduce(grad, input, dim, index, src, reduce, result, needs):
    return scatter_reduce(grad, input, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce], True, result, needs)


@backward(torch.ops.aten.scatter.value_reduce, symmetric=True)
def scatter_value_reduce(grad, dim, index, value, reduce):
    if reduce == "add":
        return grad
    # Every time that an element is met it is multiplied by value.
    grad = wide(grad)  # half precision counts no further than 256 or 2048
    times = grad.new_zeros(grad.shape).scatter_add(dim, index, torch.ones_like(index, dtype=grad.dtype))
    return grad * conj(torch.full_like(times, value) ** times)


# scatter_reduce: y_i = reduction of all src_j with index_j = i, and of x_i where include_self. Each formula below gives the gradient
# of x_i as if it took part; where it does not, only what no src_j replaced goes on.


@backward(torch.scatter_reduce, wrt=("input", "src"))
def scatter_reduce(grad, input, dim, index, src, reduce, include_self, result, needs):
    full_shape, src = src.shape, fit(src, index.shape)
    # Half precision counts no further than 256 or 2048, and rounds each factor of a product.
    grad, input, src, result = wide(grad), wide(input), wide(src), wide(result)
    formula = {"sum": _sum, "mean": _mean, "prod": _prod, "amax": _extreme, "amin": _extreme}[reduce]
    wants_input, wants_src = needs
    grad_input, grad_src = formula(grad, input, dim, index, src, include_self, result, (wants_input, wants_src))
    if wants_input and not include_self:
        grad_input = grad.scatter(dim, index, 0)
    return grad_input if wants_input else None, fit(grad_src, full_shape) if wants_src else None


def _sum(grad, input, dim, index, src, include_self, result, wants):
    return grad, grad.gather(dim, index) if wants[1] else None


def _mean(grad, input, dim, index, src, include_self, result, wants):
    count = grad.new_full(grad.shape, 1 if include_self else 0).scatter_add(dim, index, grad.new_ones(index.shape))
    part = grad / count.clamp(min=1)
    return part, part.gather(dim, index) if wants[1] else None


def _prod(grad, input, dim, index, src, include_self, result, wants):
    # Dividing the product by a factor gives that of the others; a zero factor is replaced by one first. Where two zeros
    # of src meet, the product of the others is zero either way, but its derivative is not.
    grad_input = grad_src = None
    if wants[0] and include_self:
        others = input.masked_fill(input == 0, 1)
        grad_input = grad * conj(others.scatter_reduce(dim, index, src, "prod") / others)
    if wants[1]:
        zero = src == 0
        zeros = grad.new_zeros(grad.shape).scatter_add(dim, index, zero.to(grad.dtype)).gather(dim, index)
        if recorded() and anywhere(zeros > 1):
            raise UnsupportedCallError(
                "scatter_reduce/index_reduce 'prod': there is no rule for the second derivative where two zeros of the "
                "source meet in one place. Do without create_graph, or keep the zeros apart."
            )
        lone = zero & (zeros == 1)
        others = input.scatter_reduce(dim, index, src.masked_fill(lone, 1), "prod", include_self=include_self)
        divided = (grad * conj(result)).gather(dim, index) / conj(src.masked_fill(zero, 1))
        grad_src = torch.where(lone, (grad * conj(others)).gather(dim, index), divided)
    return grad_input, grad_src


def _extreme(grad, input, dim, index, src, include_self, result, wants):
    # Ties share alike.
    chosen = zeros_and_ones(input == result, grad.dtype)
    if not include_self:
        chosen = chosen.scatter(dim, index, 0)
    chosen_src = zeros_and_ones(src == result.gather(dim, index), grad.dtype)
    part = grad / chosen.scatter_add(dim, index, chosen_src).clamp(min=1)
    return chosen * part if wants[0] else None, chosen_src * part.gather(dim, index) if wants[1] else None


# take, put: an index into the tensor laid out flat


@backward(torch.take, linear=True)
def take(grad, input_shape, index):
    zeros = grad.new_zeros(input_shape)
    if recorded():
        return zeros.put(index, grad, accumulate=True)
    return zeros.put_(index, grad, accumulate=True)


@backward(torch.put, wrt="input", symmetric=True)
def put_input(grad, index, source_shape, accumulate):
    return grad if accumulate else grad.put(index, grad.new_zeros(source_shape))


@backward(torch.put, wrt="source", linear=[("input", "source")])
def put_source(grad, index, source_shape):
    return grad.take(index).reshape(source_shape)
