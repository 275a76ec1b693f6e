"""The same elements in another shape or order: reshape, permute, expand, repeat, flip, roll, shuffles."""

import torch

from ops_registry.declare import no_gradient, passes_through
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.picking import add_slices

# Row-major order stays: the gradient is reshaped to the shape of the input, however dimensions were merged, split or added.


@backward(
    torch.reshape,
    torch.ops.aten.view.default,
    torch.ops.aten.view_copy.default,
    torch.ops.aten._unsafe_view,
    torch.ops.aten._reshape_alias,
    torch.flatten,
    torch.unflatten,
    torch.ravel,
    torch.squeeze,
    torch.unsqueeze,
    linear=True,
)
def reshape(grad, input_shape):
    return grad.reshape(input_shape)


# Bits read as another dtype are no differentiable function of the value.
no_gradient(torch.ops.aten.view.dtype, torch.ops.aten.view_copy.dtype)


_AS_DTYPE, _AS_SHAPE = torch.ops.aten.view.dtype, torch.ops.aten.view.default


def _reads_bits(size, dtype):
    return isinstance(size if dtype is None else dtype, torch.dtype)


@overloaded(torch.Tensor.view)
def view(input, size=None, *more, dtype=None):
    return _AS_DTYPE if _reads_bits(size, dtype) else _AS_SHAPE


@overloaded(torch.view_copy)
def view_copy(input, size=None, *, dtype=None, out=None):
    return torch.ops.aten.view_copy.dtype if _reads_bits(size, dtype) else torch.ops.aten.view_copy.default


# The other tensor gives its shape alone.


@decomposition(torch.Tensor.reshape_as)
def reshape_as(input, other):
    return input.reshape(other.shape)


@decomposition(torch.Tensor.view_as)
def view_as(input, other):
    return input.view(other.shape)


@decomposition(torch.Tensor.expand_as)
def expand_as(input, other):
    return input.expand(other.shape)


# Permutations of the dimensions: the gradient is permuted back.


@backward(torch.transpose, torch.swapdims, linear=True)
def transpose(grad, dim0, dim1):
    return grad.transpose(dim0, dim1)


@backward(torch.swapaxes, linear=True)
def swapaxes(grad, axis0, axis1):
    return grad.transpose(axis0, axis1)


@backward(torch.t, linear=True)
def t(grad):
    return grad.t()


@backward(torch.Tensor.T.__get__, linear=True)
def T(grad, input_shape):
    rank = len(input_shape)
    return grad.t() if rank <= 2 else grad.permute(list(reversed(range(rank))))


@backward(torch.Tensor.mT.__get__, linear=True)
def mT(grad):
    return grad.mT


@backward(torch.Tensor.H.__get__, linear=True)
def H(grad):
    return grad.H


@backward(torch.Tensor.mH.__get__, torch.adjoint, linear=True)
def mH(grad):
    return grad.mH


@backward(torch.permute, linear=True)
def permute(grad, dims):
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim] = position  # a negative dim counts from the end here too
    return grad.permute(inverse)


@backward(torch.movedim, linear=True)
def movedim(grad, source, destination):
    return grad.movedim(destination, source)


# Permutations of the elements: the inverse permutation.


@backward(torch.flip, symmetric=True)
def flip(grad, dims):
    return grad.flip(dims)


@backward(torch.fliplr, symmetric=True)
def fliplr(grad):
    return grad.fliplr()


@backward(torch.flipud, symmetric=True)
def flipud(grad):
    return grad.flipud()


@backward(torch.roll, linear=True)
def roll(grad, shifts, dims):
    back = -shifts if isinstance(shifts, int) else [-s for s in shifts]
    return grad.roll(back, () if dims is None else dims)


@backward(torch.rot90, linear=True)
def rot90(grad, k, dims):
    return grad.rot90(-k, dims)


@backward(torch.pixel_shuffle, linear=True)
def pixel_shuffle(grad, upscale_factor):
    return torch.pixel_unshuffle(grad, upscale_factor)


@backward(torch.pixel_unshuffle, linear=True)
def pixel_unshuffle(grad, downscale_factor):
    return torch.pixel_shuffle(grad, downscale_factor)


# The forward transposes (groups, channels / groups): transposing (channels / groups, groups) undoes it.


@backward(torch.channel_shuffle, torch.native_channel_shuffle, linear=True)
def channel_shuffle(grad, input_shape, groups):
    return torch.channel_shuffle(grad, input_shape[1] // groups)


# Copies of an element: their gradients add up. Along broadcast dimensions projection adds them.


passes_through(torch.Tensor.expand, torch.broadcast_to)


def _add_tiles(grad, shape, counts):
    """The sum over the copies: ``counts`` of them along each dimension of the result."""
    lead = len(counts) - len(shape)
    split, summed = list(counts[:lead]), list(range(lead))
    for count, length in zip(counts[lead:], shape, strict=True):
        if count != 1:
            summed.append(len(split))
            split.append(count)
        split.append(length)
    return grad.reshape(split).sum(summed) if summed else grad


@backward(torch.Tensor.repeat, linear=True)
def repeat(grad, input_shape, repeats):
    return _add_tiles(grad, input_shape, repeats)


@backward(torch.tile, linear=True)
def tile(grad, input_shape, dims):
    missing = len(input_shape) - len(dims)
    return _add_tiles(grad, input_shape, [1] * missing + list(dims))


@backward(torch.repeat_interleave, linear=True)
def repeat_interleave(grad, input_shape, repeats, dim):
    # Without dim the copies lie in the flattened input.
    shape = [input_shape.numel()] if dim is None or not input_shape else list(input_shape)
    dim = 0 if dim is None else dim % len(shape)
    if isinstance(repeats, int):
        return grad.reshape(*shape[: dim + 1], repeats, *shape[dim + 1 :]).sum(dim + 1).reshape(input_shape)
    origin = torch.repeat_interleave(repeats.expand(shape[dim]))
    return add_slices(grad, origin, shape, dim).reshape(input_shape)
