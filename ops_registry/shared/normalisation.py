"""What the rules of layer, group and batch normalisation share: their statistics, and the derivative of their backward kernels.

All are ``y = w x^ + b`` with ``x^ = (x - m) r``, where the mean ``m`` and ``r = 1 / sqrt(variance + eps)`` are taken over some
dimensions. The fused kernels take ``m`` and ``r`` as arguments. Where the backward pass is recorded itself, both are computed anew
from the input, so that their dependence on it is recorded; the rules of the kernels then treat them as any other argument.
"""

from __future__ import annotations

import math

import torch

from ops_registry.shared.optional import total
from ops_registry.shared.precision import wide

#: A gradient, or None where nothing arrived.
Gradient = torch.Tensor | None

#: The inputs of a normalisation, as its joint formula gives their gradients.
INPUTS = ("input", "weight", "bias")


def all_but_channels(rank: int) -> list[int]:
    """The dimensions over which batch normalisation takes its statistics."""
    return [d for d in range(rank) if d != 1]


def statistics(x: torch.Tensor, dims: list[int], eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and 1 / sqrt(variance + eps) over ``dims``, which stay with length 1."""
    x = wide(x)
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    return mean, ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()


def recorded_statistics(
    x: torch.Tensor, dims: list[int], eps: float, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``statistics``, in the shape, dtype and layout in which the kernel gave ``like`` for both."""
    mean, rstd = (s.reshape(like.shape).to(like.dtype).contiguous() for s in statistics(x, dims, eps))
    return mean, rstd


def through_statistics(
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    dims: list[int],
    grad_mean: Gradient,
    grad_rstd: Gradient,
) -> Gradient:
    """What reaches ``x`` through its mean and its rstd: dm/dx = 1/n and dr/dx = -r^3 (x - m) / n."""
    n = math.prod(x.shape[d] for d in dims)
    terms = (
        None if grad_mean is None else (grad_mean / n).expand(x.shape),
        None if grad_rstd is None else (-grad_rstd * rstd**3 / n) * (x - mean),
    )
    gradient: Gradient = total(*terms)
    return gradient


def double_backward(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    dims: list[int],
    cotangents: tuple[Gradient, Gradient, Gradient],
    fixed: bool = False,
) -> tuple[Gradient, Gradient, Gradient, Gradient, Gradient]:
    """The gradients of ``grad_out``, ``x``, ``weight``, ``mean`` and ``rstd``, as arguments of a backward kernel.

    With h = weight grad_out and x^ = (x - mean) rstd, the kernel computes
        grad_x      = rstd (h - mean(h) - x^ mean(h x^)), or rstd h where the statistics are ``fixed``
        grad_weight = sum(grad_out x^)
        grad_bias   = sum(grad_out)
    ``cotangents`` are those of these three, shaped to broadcast with ``x``, None where nothing arrived. The gradients that are
    returned have the shape of ``x`` or broadcast with it: the caller sums them to the shapes of the kernel's arguments.
    """
    cot_x, cot_weight, cot_bias = cotangents
    offset = x - mean
    normal = offset * rstd
    grad_normal = None if cot_weight is None else cot_weight * grad_out
    grad_grad_out = total(None if cot_weight is None else cot_weight * normal, cot_bias)
    grad_weight = grad_rstd = None
    if cot_x is not None:
        h = grad_out if weight is None else grad_out * weight
        if fixed:
            grad_h = rstd * cot_x
        else:
            grad_h, through_normal, grad_rstd = _through_grad_x(cot_x, h, normal, rstd, dims)
            grad_normal = total(grad_normal, through_normal)
        grad_grad_out = total(grad_h if weight is None else grad_h * weight, grad_grad_out)
        grad_weight = grad_h * grad_out
    if grad_normal is None:
        return grad_grad_out, None, grad_weight, None, grad_rstd
    grad_x = grad_normal * rstd
    return grad_grad_out, grad_x, grad_weight, -grad_x, total(grad_rstd, grad_normal * offset)


def _through_grad_x(
    cot_x: torch.Tensor, h: torch.Tensor, normal: torch.Tensor, rstd: torch.Tensor, dims: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of h, x^ and the factor rstd in ``rstd (h - mean(h) - x^ mean(h x^))``, which is symmetric in h and ``cot_x``."""
    cot_mean, cot_normal = cot_x.mean(dims, keepdim=True), (cot_x * normal).mean(dims, keepdim=True)
    h_normal = (h * normal).mean(dims, keepdim=True)
    projected = cot_x - cot_mean - normal * cot_normal
    return rstd * projected, -rstd * (h * cot_normal + cot_x * h_normal), projected * h
