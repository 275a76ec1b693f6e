"""Reading and writing at places given by index tensors: gather, scatter, take, put and the ``index_*`` family."""

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, overloaded
from ops_registry.rules.helpers import add_at, add_slices, conj
from ops_registry.rules.indexing import placed

# gather and scatter: one index for each element. Where the index is shorter than the source, the rest is not read.


def _corner(shape):
    """The index of the part of a tensor that starts at its origin and has ``shape``."""
    return tuple([slice(n) for n in shape])


def _padded(grad, shape):
    return grad if grad.shape == shape else placed(grad, shape, _corner(grad.shape))


@backward(torch.gather)
def gather(grad, input_shape, dim, index, sparse_grad):
    if sparse_grad:
        return torch.ops.aten._gather_sparse_backward(grad.new_empty(1).expand(input_shape), dim, index, grad)
    return add_at(grad, index, input_shape, dim)


@backward(torch.take_along_dim)
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


@backward(torch.scatter_add, wrt="input")
def scatter_add_input(grad):
    return grad


@backward(torch.scatter_add, wrt="src")
def scatter_add_src(grad, dim, index, src_shape):
    return _padded(grad.gather(dim, index), src_shape)


@overloaded(torch.scatter)
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise UnsupportedCallError(
            "scatter: value= is a number and takes no gradient; pass a tensor of the index's shape as src="
        )
    if isinstance(src, torch.Tensor):
        return torch.ops.aten.scatter.src if reduce is None else torch.ops.aten.scatter.reduce
    return torch.ops.aten.scatter.value if reduce is None else torch.ops.aten.scatter.value_reduce


@backward(torch.ops.aten.scatter.src, wrt="input")
def scatter_input(grad, dim, index):
    return grad.scatter(dim, index, 0)


@backward(torch.ops.aten.scatter.src, wrt="src")
def scatter_src(grad, dim, index, src_shape):
    return _padded(grad.gather(dim, index), src_shape)


@backward(torch.ops.aten.scatter.value)
def scatter_value(grad, dim, index):
    return grad.scatter(dim, index, 0)


@backward(torch.ops.aten.scatter.reduce, wrt=("input", "src"))
def scatter_with_reduce(grad, input, dim, index, src, reduce, result, needs):
    return scatter_reduce(grad, input, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce], True, result, needs)


@backward(torch.ops.aten.scatter.value_reduce)
def scatter_value_reduce(grad, dim, index, value, reduce):
    if reduce == "add":
        return grad
    # Every time that an element is met it is multiplied by value.
    times = grad.new_zeros(grad.shape).scatter_add(dim, index, torch.ones_like(index, dtype=grad.dtype))
    return grad * conj(torch.full_like(times, value) ** times)


# scatter_reduce: y_i = reduction of all src_j with index_j = i, and of x_i where include_self. "own" is the gradient
# of x_i as if it took part; where it does not, only what no src_j replaced goes on.


@backward(torch.scatter_reduce, wrt=("input", "src"))
def scatter_reduce(grad, input, dim, index, src, reduce, include_self, result, needs):
    full_shape, src = src.shape, src[_corner(index.shape)]
    formula = {"sum": _sum, "mean": _mean, "prod": _prod, "amax": _extreme, "amin": _extreme}[reduce]
    own, of_src = formula(grad, input, dim, index, src, include_self, result, needs)
    if needs[0] and not include_self:
        own = grad.scatter(dim, index, 0)
    return own, None if of_src is None else _padded(of_src, full_shape)


def _sum(grad, input, dim, index, src, include_self, result, needs):
    return grad if needs[0] else None, grad.gather(dim, index) if needs[1] else None


def _mean(grad, input, dim, index, src, include_self, result, needs):
    count = grad.new_full(grad.shape, 1 if include_self else 0).scatter_add(dim, index, grad.new_ones(index.shape))
    share = grad / count.clamp(min=1)
    return share if needs[0] else None, share.gather(dim, index) if needs[1] else None


def _prod(grad, input, dim, index, src, include_self, result, needs):
    # Dividing the product by a factor gives that of the others; a zero factor is replaced by one first. Where two zeros
    # of src meet, the product of the others is zero either way, but its derivative is not.
    own = of_src = None
    if needs[0] and include_self:
        others = input.masked_fill(input == 0, 1)
        own = grad * conj(others.scatter_reduce(dim, index, src, "prod") / others)
    if needs[1]:
        zero = src == 0
        zeros = grad.new_zeros(grad.shape).scatter_add(dim, index, zero.to(grad.dtype)).gather(dim, index)
        if torch.is_grad_enabled() and bool((zeros > 1).any()):
            raise UnsupportedCallError(
                "scatter_reduce/index_reduce 'prod': there is no rule for the second derivative where two zeros of the "
                "source meet in one place. Do without create_graph, or keep the zeros apart."
            )
        lone = zero & (zeros == 1)
        others = input.scatter_reduce(dim, index, src.masked_fill(lone, 1), "prod", include_self=include_self)
        divided = (grad * conj(result)).gather(dim, index) / conj(src.masked_fill(zero, 1))
        of_src = torch.where(lone, (grad * conj(others)).gather(dim, index), divided)
    return own, of_src


def _extreme(grad, input, dim, index, src, include_self, result, needs):
    # Ties share alike.
    own = (input == result).view(torch.int8).to(grad.dtype)
    if not include_self:
        own = own.scatter(dim, index, 0)
    of_src = (src == result.gather(dim, index)).view(torch.int8).to(grad.dtype)
    share = grad / own.scatter_add(dim, index, of_src).clamp(min=1)
    return own * share if needs[0] else None, of_src * share.gather(dim, index) if needs[1] else None


@backward(torch.index_reduce, wrt=("input", "source"))
def index_reduce(grad, input, dim, index, source, reduce, include_self, result, needs):
    trailing = input.dim() - 1 - dim % input.dim() if input.dim() else 0
    index = index.view((-1,) + (1,) * trailing).expand(source.shape) if source.dim() else index.view(())
    return scatter_reduce(grad, input, dim, index, source, reduce, include_self, result, needs)


# index_*: one index for each slice along a dimension


@backward(torch.index_select)
def index_select(grad, input_shape, dim, index):
    return add_slices(grad, index, input_shape, dim)


@backward(torch.index_add, wrt="input")
def index_add_input(grad):
    return grad


@backward(torch.index_add, wrt="source")
def index_add_source(grad, dim, index, source_shape, alpha):
    part = grad.index_select(dim, index).reshape(source_shape)
    return part if alpha == 1 else part * conj(alpha)


@backward(torch.index_copy, wrt="input")
def index_copy_input(grad, dim, index):
    return grad.index_fill(dim, index, 0)


@backward(torch.index_copy, wrt="source")
def index_copy_source(grad, dim, index, source_shape):
    return grad.index_select(dim, index).reshape(source_shape)


@backward(torch.index_fill, wrt="input")
def index_fill_input(grad, dim, index):
    return grad.index_fill(dim, index, 0)


@backward(torch.index_fill, wrt="value")
def index_fill_value(grad, dim, index, value_device):
    # A place named twice is filled once.
    size = grad.shape[dim] if grad.dim() else 1
    filled = index.new_zeros(size, dtype=torch.bool).index_fill(0, index, True)
    return grad.index_select(dim, filled.nonzero().reshape(-1)).sum().to(value_device)


# index, index_put: x[i, j, ...] with tensors alone, as the aten ops have it; None leaves a dimension as it is

_index = torch.ops.aten.index
_index_put = torch.ops.aten.index_put


@backward(_index)
def index(grad, input_shape, indices):
    return _index_put(grad.new_zeros(input_shape), indices, grad, True)


@backward(torch.index_put, wrt="input")
def index_put_input(grad, indices, accumulate):
    return grad if accumulate else _index_put(grad, indices, grad.new_zeros(()))


@backward(torch.index_put, wrt="values")
def index_put_values(grad, indices):
    return _index(grad, indices)


@backward(torch._unsafe_masked_index)
def unsafe_masked_index(grad, input_shape, mask, indices):
    return torch._unsafe_masked_index_put_accumulate(grad.new_zeros(input_shape), mask, indices, grad)


@backward(torch._unsafe_masked_index_put_accumulate, wrt="input")
def unsafe_masked_index_put_accumulate_input(grad):
    return grad


@backward(torch._unsafe_masked_index_put_accumulate, wrt="values")
def unsafe_masked_index_put_accumulate_values(grad, mask, indices):
    return torch._unsafe_masked_index(grad, mask, indices, 0)


# take, put: an index into the tensor laid out flat


@backward(torch.take)
def take(grad, input_shape, index):
    zeros = grad.new_zeros(input_shape)
    if torch.is_grad_enabled():
        return zeros.put(index, grad, accumulate=True)
    return zeros.put_(index, grad, accumulate=True)


@backward(torch.put, wrt="input")
def put_input(grad, index, source_shape, accumulate):
    return grad if accumulate else grad.put(index, grad.new_zeros(source_shape))


@backward(torch.put, wrt="source")
def put_source(grad, index, source_shape):
    return grad.take(index).reshape(source_shape)
