"""Padding with a constant, with reflections, with the edge or from the other end."""

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward
from ops_registry.shared.dimensions import shape_only
from ops_registry.shared.picking import add_slices

aten = torch.ops.aten


def _crop(grad, pad):
    # The padding is cropped; what a negative pad cropped gets zeros.
    return torch.constant_pad_nd(grad, [-n for n in pad])


def _reflected(grad, shape, padding):
    kernel = (aten.reflection_pad1d_backward, aten.reflection_pad2d_backward, aten.reflection_pad3d_backward)[
        len(padding) // 2 - 1
    ]
    return kernel(grad, shape_only(grad, shape), padding)


def _replicated(grad, shape, padding):
    kernel = (aten.replication_pad1d_backward, aten.replication_pad2d_backward, aten.replication_pad3d_backward)[
        len(padding) // 2 - 1
    ]
    return kernel(grad, shape_only(grad, shape), padding)


def _wrapped(grad, shape, pad):
    """A negative pad crops first; then position i of the result came from i modulo the length that is left."""
    sizes = list(grad.shape)
    for i in range(len(pad) // 2):
        before, after, dim = pad[2 * i], pad[2 * i + 1], len(shape) - 1 - i
        if before == after == 0:
            continue
        skipped = max(-before, 0)
        left = shape[dim] - skipped - max(-after, 0)
        origin = torch.arange(-max(before, 0), left + max(after, 0), device=grad.device) % left + skipped
        sizes[dim] = shape[dim]
        grad = add_slices(grad, origin, sizes, dim)
    return grad


@backward(torch._C._nn.pad, linear=[("input", "value")])
def pad(grad, input_shape, pad, mode):
    if mode == "constant":
        return _crop(grad, pad)
    return {"reflect": _reflected, "replicate": _replicated, "circular": _wrapped}[mode](grad, input_shape, pad)


@backward(torch.constant_pad_nd, linear=[("input", "value")])
def constant_pad_nd(grad, pad):
    return _crop(grad, pad)


@backward(torch._C._nn._pad_circular, linear=True)
def _pad_circular(grad, input_shape, pad):
    return _wrapped(grad, input_shape, pad)


def _reflection(grad, input_shape, padding):
    return _reflected(grad, input_shape, padding)


def _replication(grad, input_shape, padding):
    return _replicated(grad, input_shape, padding)


# The backward kernels are linear, and their transpose is the padding itself.


def _transpose_of(padder):
    def formula(grad, padding):
        return padder(grad, padding)

    return formula


for _kind, _rule in (("reflection", _reflection), ("replication", _replication)):
    for _n in (1, 2, 3):
        _padder = getattr(torch._C._nn, f"{_kind}_pad{_n}d")
        _kernel = getattr(aten, f"{_kind}_pad{_n}d_backward")
        backward(_padder)(_rule)
        backward(_kernel, wrt="grad_output")(_transpose_of(_padder))
        zero_gradient(_kernel, wrt="input")
