"""Rules of ``ops_registry/rules/scans.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.checking import Case, case, plain, rand, run_case, values
from support.leaves import tracked

import tracer
from ops_registry.errors import UnsupportedCallError
from ops_registry.rules.scans import backward_recurrence

COMPLEX = torch.complex128
INF = float("inf")

CASES = [
    case("cumsum", lambda x: torch.cumsum(x, 0), rand(3, 4)),
    case("cumsum", lambda x: x.cumsum(dim=-1), rand(3, 4), label="keyword"),
    case("cumsum", lambda x: torch.cumsum(x, axis=0), rand(3, 4), label="numpy-name"),
    case("cumsum", lambda x: (x * 1).cumsum_(1), rand(3, 4), label="in-place"),
    case("cumsum", lambda x: x.t().cumsum(0), rand(3, 4), label="transposed"),
    case("cumsum", lambda x: x.expand(3, 4).cumsum(0), rand(1, 4), label="expanded"),
    case("cumsum", lambda x: x.cumsum(0), rand(), label="0-d"),
    case("cumsum", lambda x: x.cumsum(0), rand(0, 3), label="empty"),
    case("cumsum", lambda x: x.cumsum(3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("cumsum", lambda x: x.cumsum(1), rand(3, 4, dtype=COMPLEX), label="complex"),
    case(
        "cumsum",
        lambda x: x.cumsum(0, dtype=torch.float64),
        rand(3, dtype=torch.float32),
        label="dtype",
        differences=False,
    ),
    case("cumprod", lambda x: torch.cumprod(x, 0), rand(5, 4)),
    case("cumprod", lambda x: x.cumprod(dim=-1), rand(3, 7), label="keyword"),
    case("cumprod", lambda x: torch.cumprod(x, axis=0), rand(3, 4), label="numpy-name"),
    case("cumprod", lambda x: (x * 1).cumprod_(1), rand(3, 4), label="in-place"),
    case("cumprod", lambda x: x.t().cumprod(0), rand(3, 4), label="transposed"),
    case("cumprod", lambda x: x.cumprod(0), rand(), label="0-d"),
    case("cumprod", lambda x: x.cumprod(0), rand(0, 3), label="empty"),
    case("cumprod", lambda x: x.cumprod(0), rand(1, 3), label="one"),
    case("cumprod", lambda x: x.cumprod(3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("cumprod", lambda x: x.cumprod(1), rand(3, 4, dtype=COMPLEX), label="complex"),
    case("cumprod", lambda x: x.cumprod(0), values([2.0, 0.0, 3.0, 4.0]), label="one-zero"),
    case("cumprod", lambda x: x.cumprod(0), values([2.0, 0.0, 3.0, 0.0, 5.0]), label="two-zeros"),
    case("cumprod", lambda x: x.cumprod(1), values([[0.0, 1.0], [2.0, 3.0]]), label="zero-in-one-row"),
    case(
        "cumprod",
        lambda x: x.cumprod(0, dtype=torch.float64),
        rand(3, dtype=torch.float32),
        label="dtype",
        differences=False,
        rtol=1e-6,
        atol=1e-6,  # one rounding of float32
    ),
    case("cummax", lambda x: torch.cummax(x, 0), rand(5, 4)),
    case("cummax", lambda x: x.cummax(dim=-1), rand(3, 7), label="keyword"),
    case("cummax", lambda x: x.cummax(0), rand(), label="0-d"),
    case("cummax", lambda x: x.cummax(0), rand(0, 3), label="empty"),
    case("cummax", lambda x: x.cummax(3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("cummax", lambda x: x.cummax(0), values([1.0, 3.0, 3.0, 2.0]), label="ties", differences=False),
    case("cummin", lambda x: torch.cummin(x, 0), rand(5, 4)),
    case("cummin", lambda x: x.cummin(1), values([[1.0, 1.0, 0.0, 0.0]]), label="ties", differences=False),
    case("logcumsumexp", lambda x: torch.logcumsumexp(x, 0), rand(5, 4)),
    case("logcumsumexp", lambda x: x.logcumsumexp(dim=-1), rand(3, 7), label="keyword"),
    case("logcumsumexp", lambda x: x.logcumsumexp(0), rand(), label="0-d"),
    case("logcumsumexp", lambda x: x.logcumsumexp(0), rand(0, 3), label="empty"),
    case("logcumsumexp", lambda x: x.logcumsumexp(0), rand(1, 3), label="one"),
    case("logcumsumexp", lambda x: x.logcumsumexp(3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("logcumsumexp", lambda x: x.logcumsumexp(1), rand(3, 4, dtype=COMPLEX), label="complex"),
    case("logcumsumexp", lambda x: x.logcumsumexp(0), values([0.0, 800.0, -800.0, 1.0]), label="large"),
    case("differences", torch.diff, rand(3, 4)),
    case("differences", lambda x: x.diff(n=2, dim=0), rand(5, 4), label="order-2"),
    case("differences", lambda x: torch.diff(x, axis=0), rand(3, 4), label="numpy-name"),
    case("diff", lambda x: x.diff(n=0), rand(3, 4), label="order-0"),
    case("differences", lambda x: x.diff(n=9), rand(3, 4), label="order-beyond-length"),
    case("differences", lambda x, a: torch.diff(x, prepend=a), rand(3, 4), rand(3, 2, seed=1), label="prepend"),
    case("differences", lambda x, a: torch.diff(x, append=a), rand(3, 4), rand(3, 2, seed=1), label="append"),
    case(
        "differences",
        lambda x, a, b: torch.diff(x, 3, 0, a, b),
        rand(2, 3),
        rand(1, 3, seed=1),
        rand(2, 3, seed=2),
        label="both-ends",
    ),
    case("differences", torch.diff, rand(3, 0), label="empty"),
    case("differences", torch.diff, rand(3, 4, dtype=COMPLEX), label="complex"),
    case("differences", lambda x: x.diff(dim=3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("trapezoid.dx", torch.trapezoid, rand(3, 4)),
    case("trapezoid.dx", lambda y: torch.trapezoid(y, dx=0.5, dim=0), rand(3, 4), label="dx"),
    case("trapezoid.x", torch.trapezoid, rand(3, 4), rand(4, seed=1), label="vector"),
    case("trapezoid.x", lambda y, x: torch.trapezoid(y, x, dim=0), rand(3, 4), rand(3, 4, seed=1), label="matrix"),
    case("trapezoid.x", lambda y, x: torch.trapezoid(y, x=x), rand(2, 3, 4), rand(3, 4, seed=1), label="lower-rank"),
    case("trapz.dx", lambda y: torch.trapz(y, dx=2), rand(3, 4)),
    case("trapz.x", torch.trapz, rand(3, 4), rand(4, seed=1)),
    case("cumulative_trapezoid.dx", lambda y: torch.cumulative_trapezoid(y, dx=0.5), rand(3, 4)),
    case("cumulative_trapezoid.x", torch.cumulative_trapezoid, rand(3, 4), rand(4, seed=1)),
    case("gradient", torch.gradient, rand(3, 4)),
    case("gradient", lambda x: torch.gradient(x, dim=1, spacing=0.5), rand(3, 4), label="spacing"),
    case(
        "gradient",
        lambda x: torch.gradient(x, dim=(0, -1), spacing=(2.0, 0.5), edge_order=2),
        rand(3, 3, 4),
        label="edges",
    ),
    case(
        "gradient",
        lambda x, t: torch.gradient(x, spacing=(t,)),
        rand(4),
        values([0.0, 1.0, 2.5, 3.0]),
        label="coordinates",
    ),
    case(
        "gradient",
        lambda x, t: torch.gradient(x, spacing=(t,), edge_order=2),
        rand(4),
        values([0.0, 1.0, 2.5, 3.0]),
        label="coordinates-edges",
    ),
    case("gradient", torch.gradient, rand(2, 3, dtype=COMPLEX), label="complex"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_cumprod_sees_past_a_zero(device: torch.device) -> None:
    # JuliaDiff/ChainRules.jl#254, pytorch/pytorch#1439, tensorflow/tensorflow#119430
    x = tracked([2.0, 0.0, 3.0, 4.0], device)
    x.cumprod(0).sum().backward()
    assert x.grad.tolist() == [1.0, 32.0, 0.0, 0.0]


def test_cumprod_that_underflows_still_has_its_derivative(device: torch.device) -> None:
    x = tracked([1e-200, 1e-200, 2.0], device)
    x.cumprod(0).sum().backward()
    assert x.grad.tolist() == [1.0, 3e-200, 0.0]


def test_second_derivative_of_cumprod_sees_past_a_zero(device: torch.device) -> None:
    # pytorch/pytorch#1439
    x = tracked([2.0, 0.0, 3.0, 4.0], device)
    (first,) = torch.autograd.grad(x.cumprod(0).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [16.0, 32.0, 10.0, 6.0]


@pytest.mark.parametrize("size", range(1, 10))
def test_backward_recurrence_equals_the_loop(size: int) -> None:
    term, factor = torch.randn(2, size, dtype=torch.float64), torch.randn(2, size - 1, dtype=torch.float64)
    expected = term.clone()
    for j in range(size - 2, -1, -1):
        expected[:, j] = term[:, j] + factor[:, j] * expected[:, j + 1]
    torch.testing.assert_close(backward_recurrence(term, factor, 1), expected)


def test_logcumsumexp_lets_nothing_flow_where_it_is_still_minus_infinity(device: torch.device) -> None:
    x = tracked([-INF, -INF, 0.0, 0.0], device)
    x.logcumsumexp(0)[2:].sum().backward()
    torch.testing.assert_close(plain(x.grad), torch.tensor([0.0, 0.0, 1.5, 0.5], dtype=torch.float64, device=device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logcumsumexp_of_large_numbers_in_low_precision_loses_no_more_than_one_rounding(
    dtype: torch.dtype, device: torch.device
) -> None:
    """Of 10000 + log 2, bfloat16 keeps nothing of log 2: torch 2.13 answers 1 for each."""
    x = tracer.track(torch.full((3,), 10000.0, dtype=dtype, device=device), True)
    x.logcumsumexp(0).sum().backward()
    expected = torch.tensor([11 / 6, 5 / 6, 1 / 3], device=device)
    torch.testing.assert_close(plain(x.grad).float(), expected, rtol=2e-3 if dtype == torch.float16 else 8e-3, atol=0)


def test_logcumsumexp_is_finite_for_cotangents_of_either_sign(device: torch.device) -> None:
    x = tracked([0.0, 0.0], device)
    x.logcumsumexp(0).backward(torch.tensor([-1.0, 0.0], dtype=torch.float64, device=device))
    assert x.grad.tolist() == [-1.0, 0.0]


def test_cummax_gives_to_the_element_that_holds_the_record(device: torch.device) -> None:
    x = tracked([1.0, 3.0, 2.0], device)
    x.cummax(0)[0].sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 0.0]


def test_cumsum_keeps_no_tensor(device: torch.device) -> None:
    assert not any(isinstance(k, torch.Tensor) for k in tracked([1.0, 2.0], device).cumsum(0).grad_fn.saved)


def test_integral_of_no_samples_is_zero(device: torch.device) -> None:
    y = tracer.track(torch.ones(2, 0, device=device), True)
    assert torch.trapezoid(y).tolist() == torch.trapezoid(y, torch.ones(0, device=device)).tolist() == [0.0, 0.0]


def test_trapezoid_refuses_a_wrong_number_of_sample_points(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="2 values of x for 3 samples"):
        torch.trapezoid(tracked([1.0, 2.0, 3.0], device), torch.ones(2, device=device))


def test_gradient_refuses_too_few_samples_for_its_edge_order(device: torch.device) -> None:
    with pytest.raises(UnsupportedCallError, match="edge_order"):
        torch.gradient(tracked([1.0, 2.0], device), edge_order=2)


@pytest.mark.parametrize("more", [{}, {"x": torch.zeros(0)}, {"dx": 0.5}], ids=["plain", "x", "dx"])
def test_cumulative_integral_over_nothing_is_empty(more: dict[str, Any], device: torch.device) -> None:
    y = tracer.track(rand(3, 0)(device), True)
    out = torch.cumulative_trapezoid(
        y, **{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in more.items()}
    )
    (g,) = torch.autograd.grad(out.sum(), y, create_graph=True)
    assert out.shape == g.shape == (3, 0)


def test_gradient_is_refused_where_there_is_not_one_coordinate_for_each_sample() -> None:
    samples = tracer.track(torch.rand(2, 5), True)
    with pytest.raises(UnsupportedCallError, match="3 coordinates are given for the 5 samples along dimension 1"):
        torch.gradient(samples, spacing=[torch.rand(2), torch.rand(3)])


def test_gradient_is_refused_along_one_dimension_twice(device: torch.device) -> None:
    with pytest.raises(UnsupportedCallError, match="twice"):
        torch.gradient(tracer.track(rand(3, 4)(device), True), dim=(1, -1))


@pytest.mark.parametrize("side", ["prepend", "append"])
def test_what_a_difference_of_order_0_leaves_out_gets_no_gradient(side: str, device: torch.device) -> None:
    end = tracer.track(rand(3, 1, seed=1)(device), True)
    assert not torch.diff(rand(3, 4)(device), n=0, **{side: end}).requires_grad
    assert torch.diff(rand(3, 4)(device), n=1, **{side: end}).requires_grad


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_slopes_are_those_of_torch_to_the_bit(dtype: torch.dtype, coordinates: bool, edge_order: int) -> None:
    samples = rand(20, 9)(torch.device("cpu")).to(dtype)
    spacing = [rand(9, low=0.1, seed=1)(torch.device("cpu")).to(dtype).cumsum(0)] if coordinates else 0.3
    ours, theirs = (
        torch.gradient(x, spacing=spacing, dim=1, edge_order=edge_order)[0]
        for x in (tracer.track(samples.clone(), True), samples)
    )
    assert torch.equal(plain(ours), theirs)
