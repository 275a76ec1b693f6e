"""Custom Functions under transforms."""

from __future__ import annotations

import numpy as np
import torch
from support.transformed import assert_as_torch
from torch.func import grad, jacrev, vmap

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, scale):
        return x**3 * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, scale = inputs
        ctx.save_for_backward(x, output)
        ctx.scale = scale

    @staticmethod
    def backward(ctx, grad_output):
        x, _ = ctx.saved_tensors
        return grad_output * 3 * x**2 * ctx.scale, None


class NumpySin(torch.autograd.Function):
    """Its forward leaves torch, so it says itself what a batch of it is."""

    @staticmethod
    def forward(x):
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpySin.apply(x), in_dims[0]


def test_a_function_with_a_generated_vmap_rule():
    assert_as_torch(lambda x, w: vmap(lambda a: Cube.apply(a * w, 2.0))(x), X, W)


def test_a_function_inside_two_levels():
    assert_as_torch(lambda x, w: vmap(lambda a: vmap(lambda b: Cube.apply(b * w, 2.0).sum() * a)(a))(x), X, W)


def test_transforms_inside_of_levels():
    assert_as_torch(lambda x, w: vmap(grad(lambda a: Cube.apply(a * w, 2.0).sum()))(x), X, W)
    assert_as_torch(lambda x, w: jacrev(lambda a: vmap(lambda b: Cube.apply(b * w, 2.0))(a))(x), X, W)


def test_a_function_with_a_vmap_method_of_its_own():
    assert_as_torch(lambda x, w: vmap(lambda a: NumpySin.apply(a * w))(x), X, W)
    assert_as_torch(lambda x: vmap(lambda a: NumpySin.apply(a), in_dims=1)(x), X)


def test_a_function_with_a_vmap_method_inside_two_levels():
    assert_as_torch(lambda x, w: vmap(lambda a: vmap(lambda b: NumpySin.apply(b * w).sum() * a)(a))(x), X, W)
