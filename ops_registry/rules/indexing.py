"""Reading and writing part of a tensor: ``x[...]``, ``select``, ``narrow``, ``slice``, their ``*_scatter`` twins, ``index_*``."""

import math

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from ops_registry.declare import passes_through
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward
from ops_registry.rules.gather_scatter import scatter_reduce
from ops_registry.shared.conjugate import scaled
from ops_registry.shared.indices import frozen, whole
from ops_registry.shared.picking import add_slices

# Reading y = x[index] is linear. Its transpose puts the gradient back where it was read and adds where one element was
# read twice: ``placed``. Writing x[index] = v passes the rest of x on: ``cleared``. Both are ops of their own, with
# rules, so that each costs one pass over memory and has derivatives itself.


def placed(grad, shape, index):
    """Zeros of ``shape`` with ``grad`` added at ``index``, an index made by ``frozen``."""
    if has_torch_function_unary(grad):
        return handle_torch_function(placed, (grad,), grad, shape, index)
    zeros = grad.new_zeros(shape)
    items = index if type(index) is tuple else (index,)
    tensors = [i for i in items if isinstance(i, torch.Tensor)]
    if not tensors or (len(tensors) == 1 and tensors[0].dtype is torch.bool):
        zeros[index] = grad  # no element is read twice
    elif len(tensors) == len(items) and all(t.dim() for t in tensors):
        zeros.index_put_(tuple(tensors), grad, accumulate=True)
    else:
        view, indices = _split(items, len(shape))
        torch.ops.aten.index_put_.default(zeros[view], indices, grad, True)
    return zeros


@backward(placed, linear=True)
def placed_grad(grad, index):
    return grad[index]


def cleared(grad, index):
    """A copy of ``grad`` with zeros at ``index``."""
    if has_torch_function_unary(grad):
        return handle_torch_function(cleared, (grad,), grad, index)
    copy = grad.clone()
    copy[index] = 0
    return copy


@backward(cleared, linear=True)
def cleared_grad(grad, index):
    return cleared(grad, index)


def _split(items, rank):
    """The basic part of an index, which makes a view, and for each dimension of the view the tensor that indexes it."""
    taken = sum(_dims_taken(i) for i in items)
    view, indices = [], []
    for item in items:
        if item is Ellipsis:
            view += [slice(None)] * (rank - taken)
            indices += [None] * (rank - taken)
        elif isinstance(item, torch.Tensor):
            view += [slice(None)] * item.dim() if item.dtype is torch.bool and item.dim() else [slice(None)]
            indices.append(item)
            if item.dtype is torch.bool and not item.dim():  # a new dimension of length 1, there or not
                view[-1], indices[-1] = None, item.unsqueeze(0)
        elif isinstance(item, bool):
            view.append(None)
            indices.append(torch.tensor([item]))
        else:
            view.append(item)
            if item is None or type(item) is slice:
                indices.append(None)
    return tuple(view), indices


def _dims_taken(item):
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype is torch.bool else 1


@backward(torch.Tensor.__getitem__, linear=True)
def getitem(grad, input_shape, idx_frozen):
    return placed(grad, input_shape, idx_frozen)


def _write(input, k, v):
    # The write itself, in place: what is asked for of the forward is the index as it reads now.
    input[k] = v
    return input, {"index": frozen(k)}


@backward(torch.Tensor.__setitem__, wrt="input", forward=_write)
def setitem_input(grad, index):
    return cleared(grad, index)


@backward(torch.Tensor.__setitem__, wrt="v")
def setitem_value(grad, index, v_shape, v_device):
    if index is False:
        return None  # x[False] = v writes nothing and does not look at v
    part = grad[index].to(v_device)
    # A value may have more leading dimensions than the place it is written to, all of length 1.
    return part.reshape((1,) * (len(v_shape) - part.dim()) + part.shape) if len(v_shape) > part.dim() else part


# One dimension: select, narrow, slice


def index_along(dim, rank, item):
    """The index that applies ``item`` to dimension ``dim`` of a tensor of ``rank`` dimensions."""
    return (slice(None),) * (dim % rank) + (item,)


@backward(torch.select, linear=True)
def select(grad, input_shape, dim, index):
    return placed(grad, input_shape, index_along(dim, len(input_shape), whole(index)))


def _range(start, length, size):
    first = whole(start)
    first = first + size if first < 0 else first
    return slice(first, first + length)


@backward(torch.narrow, torch.narrow_copy, linear=True)
def narrow(grad, input_shape, dim, start, length):
    return placed(grad, input_shape, index_along(dim, len(input_shape), _range(start, length, input_shape[dim])))


@backward(torch.ops.aten.slice, linear=True)
def slice_(grad, input_shape, dim, start, end, step):
    return placed(grad, input_shape, index_along(dim, len(input_shape), slice(start, end, step)))


# The out-of-place twins of writing: y = x with src in a place of it


@backward(torch.select_scatter, wrt="input", symmetric=True)
def select_scatter_input(grad, input_shape, dim, index):
    return cleared(grad, index_along(dim, len(input_shape), index))


@backward(torch.select_scatter, wrt="src", linear=[("input", "src")])
def select_scatter_src(grad, dim, index):
    return grad.select(dim, index)


@backward(torch.slice_scatter, wrt="input", symmetric=True)
def slice_scatter_input(grad, input_shape, dim, start, end, step):
    return cleared(grad, index_along(dim, len(input_shape), slice(start, end, step)))


@backward(torch.slice_scatter, wrt="src", linear=[("input", "src")])
def slice_scatter_src(grad, input_shape, dim, start, end, step):
    return grad[index_along(dim, len(input_shape), slice(start, end, step))]


@backward(torch.diagonal_scatter, wrt="input", symmetric=True)
def diagonal_scatter_input(grad, src_shape, offset, dim1, dim2):
    return grad.diagonal_scatter(grad.new_zeros(src_shape), offset, dim1, dim2)


@backward(torch.diagonal_scatter, wrt="src", linear=[("input", "src")])
def diagonal_scatter_src(grad, offset, dim1, dim2):
    return grad.diagonal(offset, dim1, dim2)


def _written_places(shape, steps, offset, size, stride, start, device):
    """Over which element, in reading order, of a tensor of this geometry a view of that one writes (-1: over none); None where
    elements of either share memory.
    """
    length = 1 + max(
        first + sum((n - 1) * step for n, step in zip(lengths, strides, strict=True))
        for lengths, strides, first in ((shape, steps, offset), (size, stride, start))
    )
    memory = torch.full((length,), -1, device=device)
    order = torch.arange(shape.numel(), device=device).view(shape)
    seen = memory.as_strided(shape, steps, offset).copy_(order)
    if not (_steps_over(shape, steps) and _steps_over(size, stride)):
        written = torch.arange(math.prod(size), device=device).view(size)
        where = memory.clone().as_strided(size, stride, start).copy_(written)
        if not (torch.equal(seen, order) and torch.equal(where, written)):
            return None
    return memory.as_strided(size, stride, start)


def _steps_over(lengths, strides):
    """Whether each stride is longer than all that the smaller ones reach: then no elements share memory. Of others it is not known."""
    reach = 0
    for step, n in sorted((step, n) for n, step in zip(lengths, strides, strict=True) if n > 1):
        if step <= reach:
            return False
        reach += (n - 1) * step
    return True


def _write_strided(input, src, size, stride, storage_offset=None):
    """The op, once it is known to have a gradient."""
    start = input.storage_offset() if storage_offset is None else storage_offset
    result = torch.as_strided_scatter(input, src, size, stride, storage_offset)
    geometry = input.shape, input.stride(), input.storage_offset(), size, stride, start, input.device
    if _written_places(*geometry) is None:
        raise UnsupportedCallError(
            "as_strided_scatter: elements of the tensor or of the written part share memory: no gradient is defined. "
            "Call it on x.contiguous() with strides that do not overlap."
        )
    return result, {}


@backward(torch.as_strided_scatter, wrt=("input", "src"), forward=_write_strided)
def as_strided_scatter(grad, input_stride, input_offset, size, stride, storage_offset, needs):
    start = input_offset if storage_offset is None else storage_offset
    places = _written_places(grad.shape, input_stride, input_offset, size, stride, start, grad.device)
    outside = places < 0  # in memory that the view shows and the tensor does not
    grad_input = grad_src = None
    if needs.input:
        extra = grad.numel()  # what lies outside goes to an element more
        written = outside.new_zeros(extra + 1).index_fill(0, places.masked_fill(outside, extra).reshape(-1), True)
        grad_input = grad.masked_fill(written[:-1].view(grad.shape), 0)
    if needs.src:
        grad_src = grad.reshape(-1)[places.clamp(min=0)].masked_fill(outside, 0)
    return grad_input, grad_src


# index_*: one index for each slice along a dimension


@backward(torch.index_select, linear=True)
def index_select(grad, input_shape, dim, index):
    return add_slices(grad, index, input_shape, dim)


passes_through(torch.index_add, wrt="input")


@backward(torch.index_add, wrt="source", linear=[("input", "source")])
def index_add_source(grad, dim, index, source_shape, alpha):
    return scaled(grad.index_select(dim, index).reshape(source_shape), alpha)


@backward(torch.index_copy, torch.index_fill, wrt="input", symmetric=True)
def index_copy_input(grad, dim, index):
    return grad.index_fill(dim, index, 0)


@backward(torch.index_copy, wrt="source", linear=[("input", "source")])
def index_copy_source(grad, dim, index, source_shape):
    return grad.index_select(dim, index).reshape(source_shape)


@backward(torch.index_fill, wrt="value", linear=[("input", "value")])
def index_fill_value(grad, dim, index, value_device):
    # A place named twice is filled once.
    size = grad.shape[dim] if grad.dim() else 1
    filled = index.new_zeros(size, dtype=torch.bool).index_fill(0, index, True)
    lengths = [size if d == dim % grad.dim() else 1 for d in range(grad.dim())]
    return grad.masked_fill(~filled.reshape(lengths), 0).sum().to(value_device)


@backward(torch.index_reduce, wrt=("input", "source"))
def index_reduce(grad, input, dim, index, source, reduce, include_self, result, needs):
    trailing = input.dim() - 1 - dim % input.dim() if input.dim() else 0
    index = index.view((-1,) + (1,) * trailing).expand(source.shape) if source.dim() else index.view(())
    return scatter_reduce(grad, input, dim, index, source, reduce, include_self, result, needs)


# index, index_put: x[i, j, ...] with tensors alone, as the aten ops have it; None leaves a dimension as it is

_index = torch.ops.aten.index
_index_put = torch.ops.aten.index_put


@backward(_index, linear=True)
def index(grad, input_shape, indices):
    return _index_put(grad.new_zeros(input_shape), indices, grad, True)


@backward(torch.index_put, wrt="input", symmetric=True)
def index_put_input(grad, indices, accumulate):
    return grad if accumulate else _index_put(grad, indices, grad.new_zeros(()))


@backward(torch.index_put, wrt="values", linear=[("input", "values")])
def index_put_values(grad, indices):
    return _index(grad, indices)


@backward(torch._unsafe_masked_index, linear=[("input", "fill")])
def unsafe_masked_index(grad, input_shape, mask, indices):
    return torch._unsafe_masked_index_put_accumulate(grad.new_zeros(input_shape), mask, indices, grad)


passes_through(torch._unsafe_masked_index_put_accumulate, wrt="input")


@backward(torch._unsafe_masked_index_put_accumulate, wrt="values", linear=[("input", "values")])
def unsafe_masked_index_put_accumulate_values(grad, mask, indices):
    return torch._unsafe_masked_index(grad, mask, indices, 0)
