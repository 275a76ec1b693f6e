"""Interpolation to another size, grids of an affine map, and windows laid out as columns.

All are linear: the gradient of each is its adjoint, whose gradient is the op itself.
"""

import torch

from ops_registry.registry import backward, overloaded

aten = torch.ops.aten
nn = torch._C._nn

# ---------------------------------------------------------------- interpolation

INTERPOLATIONS = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
)


def register_interpolation(op, adjoint):
    """Rules for both ways to call ``op``, with a scale for each dimension or a list of them, and for its adjoint.

    The arguments after the sizes (``align_corners``, the scales) are the same for ``op`` and its adjoint.
    """

    def forward(input, output_size, *options):
        return op.default(input, output_size, *options), {"options": options}

    def forward_vec(input, output_size, *options):
        scales = options[-1] or (None,) * (input.dim() - 2)
        return op.vec(input, output_size, *options), {"options": (*options[:-1], *scales)}

    def forward_adjoint(grad_output, output_size, input_size, *options):
        result = adjoint(grad_output, output_size, input_size, *options)
        return result, {"output_size": output_size, "options": options}

    @backward(op.default, forward=forward, linear=True)
    @backward(op.vec, forward=forward_vec, linear=True)
    def interpolation(grad, input_shape, options):
        return adjoint(grad, grad.shape[2:], input_shape, *options)

    @backward(adjoint, wrt="grad_output", forward=forward_adjoint, linear=True)
    def interpolation_backward(grad, output_size, options):
        return op.default(grad, output_size, *options)

    @overloaded(op)
    def choose(input, output_size, *options, **named):
        listed = "scale_factors" in named or any(isinstance(o, list | tuple) for o in options)
        return op.vec if listed or output_size is None else op.default


for _name in INTERPOLATIONS:
    if hasattr(aten, _name):
        register_interpolation(getattr(aten, _name), getattr(aten, f"{_name}_backward"))


# ---------------------------------------------------------------- affine grids


@backward(torch.affine_grid_generator, linear=True)
def affine_grid_generator(grad, size, align_corners):
    return aten.affine_grid_generator_backward(grad, size, align_corners)


@backward(aten.affine_grid_generator_backward, wrt="grad", linear=True)
def affine_grid_generator_backward(grad, size, align_corners):
    return torch.affine_grid_generator(grad, size, align_corners)


# ---------------------------------------------------------------- windows as columns


@backward(nn.im2col, linear=True)
def im2col(grad, input_shape, kernel_size, dilation, padding, stride):
    return nn.col2im(grad, input_shape[-2:], kernel_size, dilation, padding, stride)


@backward(nn.col2im, linear=True)
def col2im(grad, kernel_size, dilation, padding, stride):
    return nn.im2col(grad, kernel_size, dilation, padding, stride)
