"""Rules of ``ops_registry/rules/rounding.py``."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case, values

import tracer

C = torch.complex128
INF, NAN = math.inf, math.nan
STAIRS = {"floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc, "sign": torch.sign}
OTHERS = {"frac": torch.frac, "sgn": torch.sgn, "nan_to_num": torch.nan_to_num}

CASES = [
    *[case(n, f, rand(3, 4)) for n, f in {**STAIRS, **OTHERS}.items()],
    *[case(n, f, rand(), label="0-d") for n, f in {**STAIRS, **OTHERS}.items()],
    *[case(n, f, rand(2, 0), label="empty") for n, f in {**STAIRS, **OTHERS}.items()],
    *[
        case(n, lambda x, f=f: f(x.transpose(0, 3).expand(3, 2, 2, 2, 2)), rand(2, 2, 2, 1, 2), label="rank 5, strides")
        for n, f in {**STAIRS, **OTHERS}.items()
    ],
    *[case(n, lambda x, n=n: getattr(x * x, n + "_")(), rand(3), label="in place") for n in (*STAIRS, *OTHERS)],
    case("round", partial(torch.round, decimals=1), rand(3), label="decimals"),
    case("trunc", torch.fix, rand(3), label="fix"),
    case("sgn", torch.sgn, rand(2, 3, dtype=C), label="complex"),
    case(
        "nan_to_num",
        partial(torch.nan_to_num, nan=3.0, posinf=4.0, neginf=5.0),
        values([NAN, INF, -INF, 1.0]),
        differences=False,
        label="keywords",
    ),
    case("copysign", torch.copysign, rand(3, 1), rand(4)),
    case("copysign", lambda x: torch.copysign(x, -1.0), rand(3), label="number"),
    case("copysign", lambda x, y: x.clone().copysign_(y), rand(2, 3), rand(3), label="in place"),
    # torch has no derivative of heaviside
    case("heaviside", torch.heaviside, rand(3, 1), rand(4), second="differences", torch_agrees=False),
    case("nextafter", torch.nextafter, rand(3, 1), rand(4), differences=False),
    case("frexp", torch.frexp, rand(3, 4)),
    case("frexp", torch.frexp, rand(0), label="empty"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("function", [*STAIRS.values(), torch.angle])
def test_a_result_without_slope_still_requires_grad(function: object, device: torch.device) -> None:
    x = tracer.tensor([0.3, 1.7], device=device, requires_grad=True)
    assert function(x).requires_grad  # type: ignore[operator]


def test_complex_sgn_is_flat_at_zero_to_second_order(device: torch.device) -> None:
    for derivative in (first, second):
        assert_values(derivative(torch.sgn, [0j], dtype=C, device=device)[0], [0j])


def test_complex_sgn_moves_only_across(device: torch.device) -> None:
    # at z = 2i the real part of the sign changes by Re(dz) / 2, its imaginary part not at all
    assert_values(first(torch.sgn, [2j], dtype=C, device=device)[0], [0.5 + 0j])


def test_copysign_flips_the_slope_with_the_sign(device: torch.device) -> None:
    x, sign = first(torch.copysign, [2.0, 2.0, -2.0, -INF], [1.0, -1.0, 1.0, 1.0], device=device)
    assert_values(x, [1.0, -1.0, -1.0, -1.0])
    assert_values(sign, [0.0, 0.0, 0.0, 0.0])


def test_copysign_is_flat_at_zero(device: torch.device) -> None:
    x, _ = first(torch.copysign, [0.0, -0.0], [1.0, -1.0], device=device)
    assert_values(x, [0.0, 0.0])


def test_heaviside_passes_its_value_at_zero_alone(device: torch.device) -> None:
    x, value = first(torch.heaviside, [-1.0, 0.0, 1.0], [0.5, 0.5, 0.5], device=device)
    assert_values(x, [0.0, 0.0, 0.0])
    assert_values(value, [0.0, 1.0, 0.0])


def test_nextafter_lets_nothing_through_where_both_are_equal(device: torch.device) -> None:
    x, other = first(torch.nextafter, [1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 2.0, -0.0], device=device)
    assert_values(x, [1.0, 0.0, 1.0, 0.0])
    assert_values(other, [0.0, 0.0, 0.0, 0.0])


def test_what_was_not_a_number_lets_nothing_through(device: torch.device) -> None:
    assert_values(first(torch.nan_to_num, [NAN, INF, -INF, 1.0], device=device)[0], [0.0, 0.0, 0.0, 1.0])


def test_a_nan_on_the_way_back_is_stopped_where_the_input_was_replaced(device: torch.device) -> None:
    (x,) = first(lambda x: x.nan_to_num(0.0) * NAN, [NAN, 4.0], device=device)
    assert_values(x, [0.0, NAN])


def test_the_mantissa_of_a_tiny_number_is_steep(device: torch.device) -> None:
    (x,) = first(lambda x: torch.frexp(x)[0], [2.0**-1000, 3.0], device=device)
    assert_values(x, [2.0**999, 0.25])
