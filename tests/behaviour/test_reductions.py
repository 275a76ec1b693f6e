"""Reductions over any shape, dimension and ``keepdim`` have torch's gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.checking import as_outputs, cotangents, plain

import tracer

Dim = int | tuple[int, ...] | None

norm = torch.linalg.vector_norm

#: Reductions that take any set of dimensions, or all.
OVER_DIMS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "nansum": torch.nansum,
    "mean": torch.mean,
    "nanmean": torch.nanmean,
    "amax": lambda x, dim, keepdim: x.amax(() if dim is None else dim, keepdim),
    "amin": lambda x, dim, keepdim: x.amin(() if dim is None else dim, keepdim),
    "var": torch.var,
    "std": lambda x, dim, keepdim: torch.std(x, dim, correction=0, keepdim=keepdim),
    "var_mean": lambda x, dim, keepdim: torch.var_mean(x, dim, correction=0, keepdim=keepdim),
    "norm 1": lambda x, dim, keepdim: norm(x, 1, dim, keepdim),
    "norm 2": lambda x, dim, keepdim: norm(x, 2, dim, keepdim),
    "norm 3": lambda x, dim, keepdim: norm(x, 3, dim, keepdim),
    "norm 0.5": lambda x, dim, keepdim: norm(x, 0.5, dim, keepdim),
    "norm inf": lambda x, dim, keepdim: norm(x, math.inf, dim, keepdim),
}

#: Reductions along one dimension.
ALONG_DIM: dict[str, Callable[..., Any]] = {
    "prod": torch.prod,
    "max": torch.max,
    "min": torch.min,
    "aminmax": lambda x, dim, keepdim: torch.aminmax(x, dim=dim, keepdim=keepdim),
    "median": torch.median,
    "mode": torch.mode,
    "quantile": lambda x, dim, keepdim: x.quantile(0.3, dim, keepdim),
}

#: Reductions of everything.
OF_ALL: dict[str, Callable[..., Any]] = {
    "prod": torch.prod,
    "max": torch.max,
    "min": torch.min,
    "median": torch.median,
    "nanmedian": torch.nanmedian,
}

#: Ops along a dimension that keep it.
SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
    "sort": lambda x, dim: torch.sort(x, dim=dim, stable=True),
    "diff": lambda x, dim: x.diff(dim=dim),
}

#: Few different values, so that zeros and ties are frequent.
shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)
seeds = st.integers(0, 2**16)


def small_integers(shape: tuple[int, ...], seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(torch.float64).to(device)


def one_dim(draw: st.DrawFn, rank: int) -> int:
    return draw(st.integers(-max(rank, 1), max(rank, 1) - 1))


@st.composite
def shapes_and_dims(draw: st.DrawFn) -> tuple[tuple[int, ...], Dim]:
    shape = draw(shapes)
    rank = len(shape)
    kind = draw(st.sampled_from(["none", "int", "tuple"]))
    if kind == "none":
        return shape, None
    if kind == "int" or rank == 0:
        return shape, one_dim(draw, rank)
    dims = draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    return shape, tuple(d - rank if draw(st.booleans()) else d for d in dims)


@st.composite
def shapes_and_one_dim(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    shape = draw(shapes)
    return shape, one_dim(draw, len(shape))


def assert_gradient_equals_torch(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    native, ours = x.clone().requires_grad_(), tracer.track(x.clone(), True)
    try:
        expected = as_outputs(function(native))
    except (RuntimeError, IndexError):  # an empty dimension that the op cannot reduce
        with pytest.raises((RuntimeError, IndexError)):
            function(ours)
        return
    got = as_outputs(function(ours))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(plain(a), b.detach(), equal_nan=True)
    (theirs,) = torch.autograd.grad(expected, native, cotangents(expected))
    (mine,) = torch.autograd.grad(got, ours, cotangents(got))
    torch.testing.assert_close(plain(mine), theirs, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", OVER_DIMS)
@given(where=shapes_and_dims(), keepdim=st.booleans(), seed=seeds)
def test_reduction_over_dimensions(
    name: str, where: tuple[tuple[int, ...], Dim], keepdim: bool, seed: int, device: torch.device
) -> None:
    shape, dim = where
    assert_gradient_equals_torch(
        lambda x: OVER_DIMS[name](x, dim=dim, keepdim=keepdim), small_integers(shape, seed, device)
    )


@pytest.mark.parametrize("name", ALONG_DIM)
@given(where=shapes_and_one_dim(), keepdim=st.booleans(), seed=seeds)
def test_reduction_along_a_dimension(
    name: str, where: tuple[tuple[int, ...], int], keepdim: bool, seed: int, device: torch.device
) -> None:
    shape, dim = where
    assert_gradient_equals_torch(
        lambda x: ALONG_DIM[name](x, dim=dim, keepdim=keepdim), small_integers(shape, seed, device)
    )


@pytest.mark.parametrize("name", OF_ALL)
@given(shape=shapes, seed=seeds)
def test_reduction_of_everything(name: str, shape: tuple[int, ...], seed: int, device: torch.device) -> None:
    assert_gradient_equals_torch(OF_ALL[name], small_integers(shape, seed, device))


@pytest.mark.parametrize("name", SCANS)
@given(where=shapes_and_one_dim(), seed=seeds)
def test_scan(name: str, where: tuple[tuple[int, ...], int], seed: int, device: torch.device) -> None:
    shape, dim = where
    assert_gradient_equals_torch(lambda x: SCANS[name](x, dim), small_integers(shape, seed, device))


@given(where=shapes_and_dims(), keepdim=st.booleans())
def test_numpy_spelling_means_the_same(where: tuple[tuple[int, ...], Dim], keepdim: bool, device: torch.device) -> None:
    shape, dim = where
    x = tracer.track(small_integers(shape, 0, device), True)
    (ours,) = torch.autograd.grad(s := x.sum(axis=dim, keepdims=keepdim), x, cotangents([s]))
    (same,) = torch.autograd.grad(s := x.sum(dim=dim, keepdim=keepdim), x, cotangents([s]))
    assert torch.equal(ours, same)
