"""Gradients in bfloat16 and float16 are as exact as torch's own, where many numbers are added too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import plain

import tracer
from tracer.checks.conformance.accuracy import LIMIT, Draws, cotangent_of
from tracer.checks.leaves import native_leaf, tracked_leaf

F = torch.nn.functional
HALF = [torch.bfloat16, torch.float16]
PLACES = torch.arange(400) % 7

#: A call, and the shapes of its arguments. They lie between 0.1 and 1.
CALLS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "fmin": (torch.fmin, [(1, 5), (100, 7, 5)]),
    "fmax": (torch.fmax, [(1, 5), (100, 7, 5)]),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.3), [(1,), (30, 5, 1), (1, 50)]),
    "addcdiv": (lambda a, b, c: torch.addcdiv(a, b, c, value=0.3), [(1,), (30, 5, 1), (1, 50)]),
    "div": (torch.div, [(30, 5, 1), (1, 50)]),
    "ldexp": (torch.ldexp, [(30, 5, 1), (1, 50)]),
    "atan2": (torch.atan2, [(30, 5, 1), (1, 50)]),
    "expand": (lambda a: a.expand(30, 20, 5), [(1, 5)]),
    "bilinear": (F.bilinear, [(100, 6), (100, 7), (5, 6, 7), (5,)]),
    "baddbmm": (torch.baddbmm, [(1, 7), (30, 5, 6), (30, 6, 7)]),
    "vector by a batch of matrices": (torch.matmul, [(8,), (30, 8, 5)]),
    "normalize": (lambda a: F.normalize(a, dim=0), [(300, 5)]),
    "renorm": (lambda a: a.renorm(1, 0, 2.0), [(5, 60)]),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), [(5, 300), (5, 1)]),
    "weight_norm along the last": (lambda v, g: torch._weight_norm(v, g, 1), [(300, 5), (1, 5)]),
    "cumprod": (lambda a: (a + 0.5).cumprod(0), [(60, 5)]),
    "cumprod through a zero": (lambda a: torch.cat((a[:30] + 0.5, a[:1] * 0, a[30:] + 0.5)).cumprod(0), [(60, 5)]),
    "prod": (lambda a: (a + 0.5).prod(0), [(20, 5)]),
    "combinations": (torch.combinations, [(60,)]),
    "gradient": (lambda a: torch.gradient(a)[0], [(100,)]),
    "embedding_bag": (
        lambda w, s: F.embedding_bag(PLACES.view(20, 20), w, per_sample_weights=s, mode="sum"),
        [(7, 300), (20, 20)],
    ),
    "scatter_reduce": (lambda a, s: a.scatter_reduce(0, PLACES, s + 0.45, "prod"), [(7,), (400,)]),
    "soft_margin_loss": (lambda a: F.soft_margin_loss(a, torch.ones_like(a) * -0.7), [(100, 5)]),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, [(100, 5), (100, 5)]),
    "kl_div": (lambda a, t: F.kl_div(a, t, reduction="sum", log_target=True), [(100, 5), (1, 5)]),
}


def gradients(call: Callable[..., torch.Tensor], inputs: list[torch.Tensor], leaf: Any, seed: int) -> list[Any]:
    leaves = [leaf(x.clone(), True) for x in inputs]
    result = call(*leaves)
    return [plain(g) for g in torch.autograd.grad(result, leaves, cotangent_of(result, seed))]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_gradient_is_as_exact_as_that_of_torch(name: str, dtype: torch.dtype) -> None:
    call, shapes = CALLS[name]
    found = [Draws(dtype) for _ in shapes]
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        inputs = [(torch.rand(shape, generator=generator) * 0.9 + 0.1).to(dtype) for shape in shapes]
        doubles = [x.double() for x in inputs]
        four = (
            gradients(call, values, leaf, seed)
            for values, leaf in (
                (inputs, tracked_leaf), (inputs, native_leaf), (doubles, tracked_leaf), (doubles, native_leaf),
            )
        )  # fmt: skip
        for draws, gradient in zip(found, zip(*four, strict=True), strict=True):
            draws.add(*gradient)
    assert min(d.elements() for d in found) > 0
    assert max(d.errors()[0] for d in found) <= LIMIT


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("reduce", ["mean", "amax"])
def test_more_elements_than_half_precision_can_count_share_a_gradient(reduce: str, dtype: torch.dtype) -> None:
    source = tracer.track(torch.ones(5000, dtype=dtype), True)
    torch.zeros(1, dtype=dtype).scatter_reduce(
        0, torch.zeros(5000, dtype=torch.long), source, reduce, include_self=False
    ).backward()
    assert torch.equal(plain(source.grad), torch.full((5000,), 1 / 5000).to(dtype))
