"""Rules of ``ops_registry/rules/powers.py``."""

from __future__ import annotations

import math

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case

C = torch.complex128
INF, NAN = math.inf, math.nan
UP = {"low": 0.5, "high": 2.0}
UNARY = {"square": torch.square, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt}
POWERS = {"pow": torch.pow, "float_power": torch.float_power}

CASES = [
    *[case(n, f, rand(3, 4, **UP)) for n, f in UNARY.items()],
    *[case(n, f, rand(**UP), label="0-d") for n, f in UNARY.items()],
    *[case(n, f, rand(2, 0), label="empty") for n, f in UNARY.items()],
    *[case(n, f, rand(3, dtype=C), label="complex") for n, f in UNARY.items()],
    *[
        case(n, lambda x, f=f: f(x.transpose(0, 3)), rand(1, 2, 1, 3, 2, **UP), label="rank 5")
        for n, f in UNARY.items()
    ],
    *[case(n, f, rand(3, 1, **UP), rand(4)) for n, f in POWERS.items()],
    *[case(n, f, rand(**UP), rand(seed=1), label="0-d") for n, f in POWERS.items()],
    *[case(n, f, rand(2, 0, **UP), rand(1), label="empty") for n, f in POWERS.items()],
    *[case(n, f, rand(2, 1, 2, 1, 2, **UP), rand(3, 1), label="rank 5") for n, f in POWERS.items()],
    *[case(n, f, rand(3, dtype=C), rand(3, dtype=C, seed=1), label="complex") for n, f in POWERS.items()],
    *[case(n, f, rand(3), rand(3, dtype=C), label="real-complex") for n, f in POWERS.items()],
    *[case(n, f, rand(3, dtype=C), rand(3), label="complex-real") for n, f in POWERS.items()],
    *[case(n, lambda x, f=f: f(2.5, x), rand(3), label="number to a tensor") for n, f in POWERS.items()],
    *[
        case(n, lambda x, f=f: f(-2.5, x), rand(3, dtype=C), label="negative number to a complex tensor")
        for n, f in POWERS.items()
    ],
    *[case(n, lambda x, f=f: f(1 + 2j, x), rand(3), label="complex number to a tensor") for n, f in POWERS.items()],
    *[
        case(n, lambda x, f=f, p=p: f(x, exponent=p), rand(3, **UP), label=f"to the {p}")
        for n, f in POWERS.items()
        for p in (0, 1, 2, 3, -2, 0.5, -1.5, 2 + 1j)
    ],
    case("pow", lambda x, y: x.expand(3, 2).pow(y.t()), rand(2, **UP), rand(2, 3), label="strides"),
    case("pow", lambda x: x.clone().pow_(3), rand(3), label="in place"),
    case("pow", lambda x, y: x.clone().pow_(y), rand(3, **UP), rand(3), label="in place by a tensor"),
    case("pow", lambda x: 2**x, rand(3), label="reflected"),
    case("float_power", lambda x: x.clone().float_power_(3), rand(3), label="in place"),
    case("square", lambda x: x.clone().square_(), rand(3), label="in place"),
    case("sqrt", lambda x: x.clone().sqrt_(), rand(3, **UP), label="in place"),
    case("hypot", torch.hypot, rand(3, 1), rand(4)),
    case("hypot", torch.hypot, rand(), rand(seed=1), label="0-d"),
    case("hypot", torch.hypot, rand(2, 0), rand(1), label="empty"),
    case("hypot", lambda x, y: x.t().hypot(y.expand(3, 2)), rand(2, 3), rand(2), label="strides"),
    case("hypot", lambda x, y: x.clone().hypot_(y), rand(2, 3), rand(3), label="in place"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_the_corners_of_a_power_of_tensors(device: torch.device) -> None:
    # tinygrad/tinygrad#155, tinygrad/tinygrad#9075
    base, exponent = first(torch.pow, [0.0, 0.0, -2.0, 2.0], [2.0, -1.0, 2.0, 0.0], device=device)
    assert_values(base, [0.0, -INF, -4.0, 0.0])
    assert_values(exponent, [0.0, -INF, NAN, math.log(2)])


def test_zero_to_the_zero_is_a_constant(device: torch.device) -> None:
    base, exponent = first(torch.pow, [0.0], [0.0], device=device)
    assert_values(base, [0.0])
    assert_values(exponent, [0.0])


def test_the_second_derivative_of_a_square_at_zero_is_two(device: torch.device) -> None:
    # tinygrad/tinygrad#9217
    assert_values(second(lambda x: x**2, [0.0, 2.0], device=device)[0], [2.0, 2.0])


def test_the_second_derivative_of_a_square_by_tensor_exponent_at_zero_is_two(device: torch.device) -> None:
    two = torch.tensor(2.0, dtype=torch.float64, device=device)
    assert_values(second(lambda x: x**two, [0.0, 2.0], device=device)[0], [2.0, 2.0])


def test_the_second_derivative_of_the_square_of_a_multiple(device: torch.device) -> None:
    # pytorch/pytorch#58509, pytorch/pytorch#76185
    assert_values(second(lambda x: (2 * x) ** 2, [1.5], device=device)[0], [8.0])


def test_the_second_derivative_by_an_exponent_of_zero_has_its_mixed_part(device: torch.device) -> None:
    # f = x^p, so f_p = x^p log x and f_px = x^(p-1) (1 + p log x); at p = 0: f_pp + f_xp = log(x)^2 + 1/x
    _, exponent = second(torch.pow, [2.0], [0.0], device=device)
    assert_values(exponent, [math.log(2) ** 2 + 0.5])


def test_zero_as_a_number_to_a_tensor(device: torch.device) -> None:
    (exponent,) = first(lambda p: 0**p, [0.0, 2.0, -1.0], device=device)
    assert_values(exponent, [0.0, 0.0, -INF])


def test_a_negative_number_to_a_real_tensor_has_no_derivative(device: torch.device) -> None:
    (exponent,) = first(lambda p: (-2) ** p, [2.0], device=device)
    assert_values(exponent, [NAN])


def test_an_integer_base_has_a_logarithm_in_double_precision(device: torch.device) -> None:
    base = torch.tensor([3], device=device)
    (exponent,) = first(lambda p: base**p, [2.0], device=device)
    assert_values(exponent, [9 * math.log(3)])


def test_float_power_of_single_precision_gets_a_single_precision_gradient(device: torch.device) -> None:
    base, _ = first(torch.float_power, [3.0], [2.0], dtype=torch.float32, device=device)
    assert base.dtype == torch.float32
    assert_values(base, [6.0])


def test_hypot_at_the_origin_has_the_slope_of_least_norm(device: torch.device) -> None:
    # pytorch/pytorch#98276
    x, y = first(torch.hypot, [0.0, 3.0], [0.0, 4.0], device=device)
    assert_values(x, [0.0, 0.6])
    assert_values(y, [0.0, 0.8])


def test_the_second_derivative_of_hypot_is_finite_at_the_origin(device: torch.device) -> None:
    x, y = second(torch.hypot, [0.0], [0.0], device=device)
    assert_values(x, [0.0])
    assert_values(y, [0.0])


def test_hypot_of_tiny_numbers_does_not_underflow(device: torch.device) -> None:
    x, y = first(torch.hypot, [3e-200], [4e-200], device=device)
    assert_values(x, [0.6])
    assert_values(y, [0.8])


def test_the_square_root_is_infinitely_steep_at_zero(device: torch.device) -> None:
    assert_values(first(torch.sqrt, [0.0, 4.0], device=device)[0], [INF, 0.25])


def test_a_square_keeps_nothing_but_its_input_and_a_root_nothing_but_its_result() -> None:
    import ops_registry

    keeps = {r.op: r.keeps for r in ops_registry.list_rules()}
    assert keeps["square"] == ("input",)
    assert keeps["sqrt"] == keeps["rsqrt"] == ("result",)
