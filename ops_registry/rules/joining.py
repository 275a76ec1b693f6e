"""Joining tensors, splitting a tensor, and bringing lists of tensors to a common shape."""

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.dimensions import broadcast_shape
from ops_registry.shared.picking import add_slices
from ops_registry.shared.precision import wide

# Joining: the gradient of each tensor is its part of the gradient of the result.


def _parts(grad, shapes, lengths, dim):
    parts = torch.split_with_sizes(grad, lengths, dim)
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@backward(torch.cat, wrt="tensors", linear=True)
def cat(grad, tensors_shape, dim):
    if (0,) in tensors_shape:  # torch skips such a tensor, whatever the shape of the others
        lengths = [0 if shape == (0,) else shape[dim] for shape in tensors_shape]
        return _parts(grad, tensors_shape, lengths, dim)
    return torch.split_with_sizes(grad, [shape[dim] for shape in tensors_shape], dim)


@backward(torch.stack, wrt="tensors", linear=True)
def stack(grad, dim):
    return grad.unbind(dim)


@backward(torch.hstack, wrt="tensors", linear=True)
def hstack(grad, tensors_shape):
    dim = 0 if len(tensors_shape[0]) <= 1 else 1
    lengths = [0 if shape == (0,) else shape[dim] if shape else 1 for shape in tensors_shape]
    return _parts(grad, tensors_shape, lengths, dim)


@backward(torch.vstack, wrt="tensors", linear=True)
def vstack(grad, tensors_shape):
    return _parts(grad, tensors_shape, [shape[0] if len(shape) > 1 else 1 for shape in tensors_shape], 0)


@backward(torch.dstack, wrt="tensors", linear=True)
def dstack(grad, tensors_shape):
    return _parts(grad, tensors_shape, [shape[2] if len(shape) > 2 else 1 for shape in tensors_shape], 2)


@backward(torch.column_stack, wrt="tensors", linear=True)
def column_stack(grad, tensors_shape):
    return _parts(grad, tensors_shape, [shape[1] if len(shape) > 1 else 1 for shape in tensors_shape], 1)


@backward(torch._C._VariableFunctions.block_diag, wrt="tensors", linear=True)
def block_diag(grad, tensors_shape):
    blocks, row, column = [], 0, 0
    for shape in tensors_shape:
        height, width = (1, *shape)[-2:] if shape else (1, 1)
        blocks.append(grad[row : row + height, column : column + width].reshape(shape))
        row, column = row + height, column + width
    return blocks


# Splitting: the gradients of the parts are joined, with zeros for parts that received none.


def _filled(grads, shapes):
    some = next(g for g in grads if g is not None)
    return [some.new_zeros(shape) if g is None else g for g, shape in zip(grads, shapes, strict=True)]


def _joined(grad, result_shape, dim):
    return torch.cat(_filled(grad, result_shape), dim)


@backward(
    torch._C._VariableFunctions.split,
    torch.split_with_sizes,
    torch.unsafe_split,
    torch.unsafe_split_with_sizes,
    torch.chunk,
    torch.unsafe_chunk,
    torch.ops.aten.tensor_split.sections,
    linear=True,
)
def split(grad, result_shape, dim):
    return _joined(grad, result_shape, dim)


@backward(torch.unbind, linear=True)
def unbind(grad, result_shape, dim):
    return torch.stack(_filled(grad, result_shape), dim)


def _joined_at(grad, result_shape, input_shape, indices, dim):
    joined = torch.cat(_filled(grad, result_shape), dim)
    if sum(shape[dim] for shape in result_shape) == input_shape[dim]:
        return joined
    # Where the indices do not ascend, parts overlap.
    if isinstance(indices, int):
        raise UnsupportedCallError(
            "parts that overlap have a rule where the indices are given as one tuple: x.hsplit((3, 1))"
        )
    taken = torch.cat(torch.arange(input_shape[dim], device=joined.device).tensor_split(indices))
    return add_slices(joined, taken, input_shape, dim)


@backward(torch.ops.aten.tensor_split.indices, linear=True)
def tensor_split_indices(grad, result_shape, input_shape, indices, dim):
    return _joined_at(grad, result_shape, input_shape, indices, dim)


@decomposition(torch.ops.aten.tensor_split.tensor_indices_or_sections)
def tensor_split_tensor(input, tensor_indices_or_sections, dim):
    return torch.tensor_split(input, tensor_indices_or_sections.tolist(), dim)


@backward(torch.ops.aten.hsplit.int, linear=True)
def hsplit_int(grad, result_shape):
    return _joined(grad, result_shape, min(1, len(result_shape[0]) - 1))


@backward(torch.ops.aten.hsplit.array, linear=True)
def hsplit_array(grad, result_shape, input_shape, indices):
    return _joined_at(grad, result_shape, input_shape, indices, min(1, len(input_shape) - 1))


@backward(torch.ops.aten.vsplit.int, linear=True)
def vsplit_int(grad, result_shape):
    return _joined(grad, result_shape, 0)


@backward(torch.ops.aten.vsplit.array, linear=True)
def vsplit_array(grad, result_shape, input_shape, indices):
    return _joined_at(grad, result_shape, input_shape, indices, 0)


@backward(torch.ops.aten.dsplit.int, linear=True)
def dsplit_int(grad, result_shape):
    return _joined(grad, result_shape, 2)


@backward(torch.ops.aten.dsplit.array, linear=True)
def dsplit_array(grad, result_shape, input_shape, indices):
    return _joined_at(grad, result_shape, input_shape, indices, 2)


@overloaded(torch.tensor_split)
def tensor_split(input, *given, dim=0, **named):
    where = next(iter((*given, *named.values())))
    if isinstance(where, torch.Tensor):
        return torch.ops.aten.tensor_split.tensor_indices_or_sections
    return (
        torch.ops.aten.tensor_split.indices if isinstance(where, list | tuple) else torch.ops.aten.tensor_split.sections
    )


def _sections_or_indices(packet):
    def choose(input, *given, **named):
        where = next(iter((*given, *named.values())))
        return packet.array if isinstance(where, list | tuple) or len(given) > 1 else packet.int

    return choose


overloaded(torch.hsplit)(_sections_or_indices(torch.ops.aten.hsplit))
overloaded(torch.vsplit)(_sections_or_indices(torch.ops.aten.vsplit))
overloaded(torch.dsplit)(_sections_or_indices(torch.ops.aten.dsplit))


# Products of lists of 1-d tensors


@decomposition(torch._C._VariableFunctions.cartesian_prod)
def cartesian_prod(tensors):
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([t.flatten() for t in torch.meshgrid(*tensors, indexing="ij")], 1)


@backward(torch.combinations, linear=True)
def combinations(grad, input_shape, r, with_replacement):
    n = input_shape[0]
    if r == 2:
        chosen = torch.triu_indices(n, n, 0 if with_replacement else 1, device=grad.device).mT
    else:
        chosen = torch.combinations(torch.arange(n, device=grad.device), r, with_replacement)
    grad = wide(grad)
    grad_input = grad.new_zeros(input_shape)
    for column, places in zip(grad.unbind(-1), chosen.unbind(-1), strict=True):
        grad_input = grad_input.index_add(0, places, column)
    return grad_input


# vander: the derivative of x^n is n x^(n-1).


def _vander(grad, x):
    """The gradient of x, for columns x^0, x^1, …"""
    powers = torch.arange(1, max(grad.shape[-1], 1), device=grad.device)
    return (grad[..., 1:] * (powers * x.conj().unsqueeze(-1) ** (powers - 1))).sum(-1)


@backward(torch.vander)
def vander(grad, x, increasing):
    return _vander(grad if increasing else grad.flip(-1), x)


@backward(torch.linalg.vander)
def linalg_vander(grad, x):
    return _vander(grad, x)


# Lists brought to a common rank or shape. Tensors that have it already are returned as they are, as in torch.


def _each(tensors, function):
    return function(tensors) if isinstance(tensors, torch.Tensor) else tuple(function(t) for t in tensors)


@decomposition(torch._C._VariableFunctions.atleast_1d)
def atleast_1d(tensors):
    return _each(tensors, lambda t: t.reshape(1) if t.dim() == 0 else t)


@decomposition(torch._C._VariableFunctions.atleast_2d)
def atleast_2d(tensors):
    return _each(tensors, lambda t: t.reshape(1, 1) if t.dim() == 0 else t.unsqueeze(0) if t.dim() == 1 else t)


@decomposition(torch._C._VariableFunctions.atleast_3d)
def atleast_3d(tensors):
    return _each(
        tensors, lambda t: t if t.dim() > 2 else t.reshape(1, *(t.shape or (1,)), 1) if t.dim() < 2 else t.unsqueeze(-1)
    )


@decomposition(torch._C._VariableFunctions.broadcast_tensors)
def broadcast_tensors(tensors):
    shapes = [t.shape for t in tensors]
    shape = shapes[0] if shapes.count(shapes[0]) == len(shapes) else broadcast_shape(*shapes)
    return tuple([t if s == shape else t.expand(shape) for t, s in zip(tensors, shapes, strict=True)])


@decomposition(torch._C._VariableFunctions.meshgrid)
def meshgrid(tensors, indexing):
    if any(t.dim() > 1 for t in tensors):
        raise UnsupportedCallError(
            f"meshgrid takes tensors of rank 0 or 1, got shapes {[tuple(t.shape) for t in tensors]}"
        )
    if indexing not in (None, "ij", "xy"):
        raise UnsupportedCallError(f'meshgrid: indexing is "ij" or "xy", not "{indexing}"')
    axes = list(range(len(tensors)))
    if indexing == "xy":
        axes[:2] = reversed(axes[:2])
    shape = [tensors[axis].numel() for axis in axes]
    return tuple(
        t.reshape([-1 if axis == i else 1 for i in range(len(axes))]).expand(shape)
        for t, axis in zip(tensors, axes, strict=True)
    )
