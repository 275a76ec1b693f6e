"""Rules of ``ops_registry/rules/special.py``."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case

import tracer
from ops_registry import UnsupportedCallError

C = torch.complex128
special = torch.special
INF, NAN = math.inf, math.nan
#: Each with an interval where it is tame.
UNARY = {
    "erf": (torch.erf, -2.0, 2.0),
    "erfc": (torch.erfc, -2.0, 2.0),
    "erfinv": (torch.erfinv, -0.9, 0.9),
    "special_erfcx": (special.erfcx, -1.0, 2.0),
    "special_ndtr": (special.ndtr, -2.0, 2.0),
    "special_log_ndtr": (special.log_ndtr, -2.0, 2.0),
    "special_ndtri": (special.ndtri, 0.1, 0.9),
    "lgamma": (torch.lgamma, 0.5, 3.0),
    "digamma": (torch.digamma, 0.5, 3.0),
    "mvlgamma": (partial(torch.mvlgamma, p=3), 2.0, 4.0),
    "polygamma": (partial(torch.polygamma, 2), 0.5, 3.0),
    "special_entr": (special.entr, 0.1, 2.0),
    "sinc": (torch.sinc, -2.0, 2.0),
}

CASES = [
    *[case(n, f, rand(3, 4, low=a, high=b)) for n, (f, a, b) in UNARY.items()],
    *[case(n, f, rand(low=a, high=b), label="0-d") for n, (f, a, b) in UNARY.items()],
    *[case(n, f, rand(2, 0), label="empty") for n, (f, _, _) in UNARY.items() if n != "mvlgamma"],
    *[
        case(
            n,
            lambda x, f=f: f(x.transpose(0, 3).expand(3, 2, 2, 2, 2)),
            rand(2, 2, 2, 1, 2, low=a, high=b),
            label="rank 5, strides",
        )
        for n, (f, a, b) in UNARY.items()
    ],
    case("mvlgamma", lambda x: special.multigammaln(x, 2), rand(3, low=2, high=3), label="alias"),
    case("polygamma", lambda x: x.polygamma(1), rand(3, low=0.5, high=3), label="method"),
    case("polygamma", lambda x: torch.polygamma(n=0, input=x), rand(3, low=0.5, high=3), label="keywords"),
    case("digamma", special.psi, rand(3, low=0.5, high=3), label="alias"),
    *[
        case(n, lambda x, n=n: getattr(x.clone(), n + "_")(), rand(3, low=0.1, high=0.9), label="in place")
        for n in ("erf", "erfc", "erfinv", "lgamma", "digamma")
    ],
    *[
        case(
            "igamma",
            lambda x, f=f: f(torch.tensor([0.5, 1.0, 2.5], device=x.device, dtype=x.dtype), x),
            rand(2, 3, low=0.5, high=2),
            label=f.__name__,
        )
        for f in (torch.igamma, special.gammainc)
    ],
    case(
        "igammac",
        lambda x: torch.igammac(torch.tensor([0.5, 1.0, 2.5], device=x.device, dtype=x.dtype), x),
        rand(2, 3, low=0.5, high=2),
    ),
    case(
        "special_zeta",
        lambda q: special.zeta(torch.tensor([[2.0], [3.5]], device=q.device, dtype=q.dtype), q),
        rand(3, low=0.5, high=2),
    ),
    case("special_zeta", lambda q: special.zeta(2.5, q), rand(3, low=0.5, high=2), label="number"),
    case("special_xlog1py", special.xlog1py, rand(3, 1), rand(4, low=-0.5, high=2)),
    case("special_xlog1py", lambda x: special.xlog1py(x, 3), rand(3), label="number"),
    case("special_xlog1py", lambda y: special.xlog1py(3, y), rand(3, low=-0.5, high=2), label="number first"),
    case("sinc", torch.sinc, rand(5, dtype=C), label="complex"),
    case("sinc", lambda x: x.clone().sinc_(), rand(3, low=-2.0, high=2.0), label="in place"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac, special.zeta])
def test_a_first_argument_without_known_derivative_is_an_error_at_backward(
    function: object, device: torch.device
) -> None:
    a = tracer.tensor([2.0], device=device, requires_grad=True)
    result = function(a, torch.ones_like(a))  # type: ignore[operator]
    with pytest.raises(UnsupportedCallError, match="first argument"):
        result.backward()


def test_log_ndtr_far_to_the_left_has_a_finite_slope(device: torch.device) -> None:
    (slope,) = first(special.log_ndtr, [-100.0], device=device)
    torch.testing.assert_close(slope.item(), 100.00999800099926, rtol=1e-9, atol=0)  # x + 1/x - 2/x^3 + ...


def test_erfinv_is_infinitely_steep_at_its_ends(device: torch.device) -> None:
    assert_values(first(torch.erfinv, [-1.0, 0.0, 1.0], device=device)[0], [INF, math.sqrt(math.pi) / 2, INF])


def test_entropy_at_zero_is_infinitely_steep(device: torch.device) -> None:
    assert_values(first(special.entr, [0.0, 1.0], device=device)[0], [INF, -1.0])


def test_zero_times_the_log_of_one_less_one_has_gradient_zero(device: torch.device) -> None:
    (x,) = first(lambda x: special.xlog1py(x, -1.0), [0.0], device=device)
    assert_values(x, [0.0])


def test_sinc_is_flat_at_zero(device: torch.device) -> None:
    assert_values(first(torch.sinc, [0.0], device=device)[0], [0.0])


def test_the_second_derivative_of_sinc_at_zero(device: torch.device) -> None:
    # sinc(x) = 1 - (pi x)^2 / 6 + ...
    assert_values(second(torch.sinc, [0.0], device=device)[0], [-(math.pi**2) / 3])


def test_the_second_derivative_of_complex_sinc_at_zero(device: torch.device) -> None:
    # a holomorphic first derivative: the real part of f''(0) (dx + i dy) gives conj(f''(0))
    assert_values(second(torch.sinc, [0j], dtype=C, device=device)[0], [-(math.pi**2) / 3 + 0j])


@pytest.mark.parametrize("x", [1e-9, 1e-4, 0.01])
def test_the_slope_of_sinc_near_zero_loses_no_digits(x: float, device: torch.device) -> None:
    t = math.pi * x
    series = math.pi * (-t / 3 + t**3 / 30 - t**5 / 840 + t**7 / 45360)
    assert_values(first(torch.sinc, [x], device=device)[0], [series])


def test_the_slope_of_sinc_is_continuous_where_its_series_ends(device: torch.device) -> None:
    below, above = math.nextafter(1 / math.pi, 0), math.nextafter(1 / math.pi, 1)
    slopes = first(torch.sinc, [below, above], device=device)[0]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-14, atol=0)
