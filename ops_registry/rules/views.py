"""Diagonals, triangles, sliding windows and strides."""

import torch

from ops_registry.registry import backward, decomposition
from ops_registry.shared.recorded import recorded
from ops_registry.strided import write_region
from ops_registry.torch_private import is_batched

# diagonals


@backward(torch.diagonal, torch.diagonal_copy, linear=True)
def diagonal(grad, input_shape, offset, dim1, dim2):
    return torch.ops.aten.diagonal_backward(grad, input_shape, offset, dim1, dim2)


@decomposition(torch.linalg.diagonal)
def linalg_diagonal(A, offset, dim1, dim2):
    return torch.diagonal(A, offset, dim1, dim2)


@backward(torch.ops.aten.diagonal_backward, wrt="grad_output", linear=True)
def diagonal_backward(grad, offset, dim1, dim2):
    return grad.diagonal(offset, dim1, dim2)


@backward(torch.diag_embed, linear=True)
def diag_embed(grad, offset, dim1, dim2):
    return grad.diagonal(offset, dim1, dim2)


@backward(torch.diagflat, linear=True)
def diagflat(grad, input_shape, offset):
    return grad.diagonal(offset).reshape(input_shape)


@backward(torch.diag, linear=True)
def diag(grad, input_shape, diagonal):
    if len(input_shape) == 1:
        return grad.diagonal(diagonal)
    return torch.ops.aten.diagonal_backward(grad, input_shape, diagonal, 0, 1)


# triangles


@backward(torch.tril, symmetric=True)
def tril(grad, diagonal):
    return grad.tril(diagonal)


@backward(torch.triu, symmetric=True)
def triu(grad, diagonal):
    return grad.triu(diagonal)


# sliding windows


@backward(torch.Tensor.unfold, torch.unfold_copy, linear=True)
def unfold(grad, input_shape, dimension, size, step):
    return torch.ops.aten.unfold_backward(grad, input_shape, dimension, size, step)


@backward(torch.ops.aten.unfold_backward, wrt="grad_in", linear=True)
def unfold_backward(grad, dim, size, step):
    return grad.unfold(dim, size, step)


# strides


def _addresses(shape, stride, start, device):
    """The memory cell of each element of a tensor with this geometry."""
    found = torch.tensor(start, device=device)
    for length, step in zip(shape, stride, strict=True):
        found = found.unsqueeze(-1) + torch.arange(length, device=device) * step
    return found.reshape(-1)


def _is_contiguous(shape, stride):
    expected = 1
    for length, step in zip(reversed(shape), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


def _may_overlap(shape, stride):
    """Whether two elements may share a cell: whether some stride is within the span of the smaller ones."""
    span = 0
    for step, length in sorted(zip(stride, shape, strict=True)):
        if length > 1:
            if step <= span:
                return True
            span += step * (length - 1)
    return False


@backward(torch.as_strided, torch.as_strided_copy)
def as_strided(grad, input_shape, input_stride, input_offset, size, stride, storage_offset):
    """The gradient of each memory cell is the sum over those elements of the result that read it.

    Elements of the input that share a cell get equal parts of its gradient: the op that made them share it adds the parts up.
    """
    offset = input_offset if storage_offset is None else storage_offset
    if input_shape.numel() == 0 or grad.numel() == 0:
        return grad.new_zeros(input_shape)
    first = min(input_offset, offset)
    begin = input_offset - first
    end = begin + 1 + sum((n - 1) * s for n, s in zip(input_shape, input_stride, strict=True))
    cells = max(end, offset - first + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)))
    memory = grad.new_zeros(cells)
    if recorded() or _may_overlap(size, stride):
        memory = memory.index_add(0, _addresses(size, stride, offset - first, grad.device), grad.reshape(-1))
    else:
        memory.as_strided(size, stride, offset - first).copy_(grad)
    if _is_contiguous(input_shape, input_stride):
        return memory[begin:end].reshape(input_shape)
    seen = _addresses(input_shape, input_stride, begin, grad.device)
    sharing = torch.bincount(seen, minlength=cells)
    return (memory[seen] / sharing[seen]).reshape(input_shape)


# writing through a view


@backward(write_region, wrt="input")
def write_region_input(grad, input_stride, input_offset, size, stride, storage_offset):
    memory, order = in_memory_order(grad, input_stride)
    offset = storage_offset - input_offset
    if is_batched(memory):  # torch has no as_strided_scatter inside torch.vmap
        region = torch.zeros(memory.shape, dtype=torch.bool, device=memory.device)
        region.as_strided(size, stride, offset).fill_(True)
        grad_input = memory.masked_fill(region, 0)
    else:
        grad_input = torch.as_strided_scatter(memory, memory.new_zeros(size), size, stride, offset)
    return grad_input.permute([order.index(d) for d in range(len(order))])


@backward(write_region, wrt="value")
def write_region_value(grad, input_stride, input_offset, size, stride, storage_offset):
    memory, _ = in_memory_order(grad, input_stride)
    return memory.as_strided(size, stride, storage_offset - input_offset)


def in_memory_order(grad, strides):
    """``grad`` of a dense tensor with these strides, with memory and dimensions in the order of that tensor's memory; and that order."""
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    return grad.permute(order).contiguous(), order
