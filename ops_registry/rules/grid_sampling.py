"""Sampling of images and volumes at the points of a grid.

A sample is ``sum_k W_k(p) x[k]`` over the places ``k`` near its point ``p``. Each weight ``W_k`` is a product of one
weight a dimension.
"""

import itertools
import math

import torch

from ops_registry.registry import backward
from ops_registry.shared.optional import per_result, total

aten = torch.ops.aten

#: torch's numbers for its modes.
BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2

#: The free parameter of the cubic kernel.
CUBIC = -0.75


@backward(
    torch.grid_sampler,
    torch.grid_sampler_2d,
    torch.grid_sampler_3d,
    wrt=("input", "grid"),
    cast_to_grad=("input", "grid"),
    linear=["input"],
)
def grid_sampler(grad, input, grid, interpolation_mode, padding_mode, align_corners, needs):
    grad_input, grad_grid = kernel(grad, input, grid, (interpolation_mode, padding_mode, align_corners), needs)
    return grad_input, grad_grid if needs.grid else None  # the kernel computes the latter in any case


def kernel(g, x, grid, modes, mask):
    backward_kernel = aten.grid_sampler_2d_backward if grid.dim() == 4 else aten.grid_sampler_3d_backward
    return backward_kernel(g, x, grid, *modes, list(mask))


# With the sampler F(x, p), the kernel returns the gradients of <g, F(x, p)> by x and by p. Against cotangents v and a
# that is
#     S = <g, F(v, p)> + <g, dF(x, p)[a]>
# whose first term has the gradients of the sampler itself. The second is written out below.


@backward(aten.grid_sampler_2d_backward, aten.grid_sampler_3d_backward, wrt=("grad_output", "input", "grid"))
def grid_sampler_backward(
    grad, grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, needs
):
    v, a = per_result(grad, output_mask)
    modes = (interpolation_mode, padding_mode, align_corners)
    grad_g = grad_x = grad_grid = None
    if v is not None:
        grad_g = torch.grid_sampler(v, grid, *modes) if needs.grad_output else None
        grad_grid = kernel(grad_output, v, grid, modes, (False, True))[1] if needs.grid else None
    if a is not None and interpolation_mode != NEAREST:
        more_grad_g, grad_x, more_grad_grid = directional(grad_output, input, grid, a, modes)
        grad_g, grad_grid = total(grad_g, more_grad_g), total(grad_grid, more_grad_grid)
    return grad_g, grad_x, grad_grid


def directional(g, x, grid, a, modes):
    """The gradients of ``<g, dF(x, p)[a]>`` by ``g``, ``x`` and ``p``."""
    samples, channels, *sizes = x.shape
    values, g_flat, a = x.flatten(2), g.flatten(2), a.flatten(1, -2)
    n, points = len(sizes), grid.flatten(1, -2)
    # Coordinate 0 of a point belongs to the last dimension.
    axes = [axis_taps(points[..., d], sizes[n - 1 - d], *modes) for d in range(n)]
    strides = [math.prod(sizes[n - d :]) for d in range(n)]
    speed = [a[..., d] * axes[d][0] for d in range(n)]
    grad_g, grad_x, grad_points = torch.zeros_like(g_flat), torch.zeros_like(values), [0] * n
    for taps in itertools.product(*(taps for _, taps in axes)):
        place = sum(index * stride for (index, *_), stride in zip(taps, strides, strict=True))
        inside = math.prod(within for _, within, *_ in taps)
        place = place.unsqueeze(1).expand(samples, channels, -1)
        weights = [w for _, _, *w in taps]  # for each dimension the weight and its first two derivatives

        def derivative(orders, weights=weights, inside=inside):
            return math.prod((weights[d][order] for d, order in enumerate(orders)), start=inside)

        slope = sum(speed[d] * derivative([int(d == e) for e in range(n)]) for d in range(n)).unsqueeze(1)
        here = values.gather(2, place)
        grad_g = grad_g + slope * here
        grad_x = grad_x.scatter_add(2, place, slope * g_flat)
        product = (g_flat * here).sum(1)
        for e in range(n):
            second = sum(speed[d] * derivative([int(d == i) + int(e == i) for i in range(n)]) for d in range(n))
            grad_points[e] = grad_points[e] + axes[e][0] * second * product
    return grad_g.reshape(g.shape), grad_x.reshape(x.shape), torch.stack(grad_points, -1).reshape(grid.shape)


def axis_taps(points, size, interpolation, padding, align_corners):
    """Along one dimension: how fast the place in the input moves with the point, and the places read.

    Each of these is its index, whether it lies inside, its weight, and the weight's first and second derivative.
    """
    scale = (size - 1) / 2 if align_corners else size / 2
    at = (points + 1) * scale if align_corners else (points + 1) * scale - 0.5
    if interpolation == BICUBIC:
        first = at.floor()
        weights = cubic_weights(at - first)
        indices = [padded(first + k, size, padding, align_corners)[0] for k in (-1, 0, 1, 2)]
        speed = torch.full_like(points, scale)
    else:
        at, sign = padded(at, size, padding, align_corners)
        first, speed = at.floor(), sign * scale
        t, one = at - first, torch.ones_like(at)
        weights = [(1 - t, -one, 0 * one), (t, one, 0 * one)]
        indices = [first, first + 1]
    taps = []
    for index, weight in zip(indices, weights, strict=True):
        inside = ((index >= 0) & (index < size)).to(points.dtype)
        taps.append((index.clamp(0, size - 1).long(), inside, *weight))
    return speed, taps


def padded(at, size, padding, align_corners):
    """Where a place outside is read instead, and the derivative of that by the place."""
    one = torch.ones_like(at)
    if padding == ZEROS:
        return at, one
    sign = one
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            return at * 0, one * 0
        distance = (at - low).abs()
        sign = torch.where(at < low, -one, one)
        flips = (distance / span).floor()
        rest = distance - flips * span
        odd = flips % 2 == 1
        at = torch.where(odd, span - rest, rest) + low
        sign = torch.where(odd, -sign, sign)
    inside = (at > 0) & (at < size - 1)
    return at.clamp(0, size - 1), torch.where(inside, sign, one * 0)


def cubic_weights(t):
    """The weights of the four places around a fraction ``t`` with their first and second derivatives."""

    def near(x):  # |x| <= 1
        c = CUBIC
        return ((c + 2) * x - (c + 3)) * x * x + 1, (3 * (c + 2) * x - 2 * (c + 3)) * x, 6 * (c + 2) * x - 2 * (c + 3)

    def far(x):  # 1 < |x| < 2
        c = CUBIC
        return ((c * x - 5 * c) * x + 8 * c) * x - 4 * c, (3 * c * x - 10 * c) * x + 8 * c, 6 * c * x - 10 * c

    def mirrored(weight, slope, second):  # as a function of -x
        return weight, -slope, second

    return [far(t + 1), near(t), mirrored(*near(1 - t)), mirrored(*far(2 - t))]
