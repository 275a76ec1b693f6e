"""Rules of ``ops_registry/rules/exponential.py``."""

from __future__ import annotations

import math

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case

C = torch.complex128
INF, NAN = math.inf, math.nan
UP = {"low": 0.5, "high": 2.0}
UNARY = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
}
BINARY = {"logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2, "xlogy": torch.xlogy, "ldexp": torch.ldexp}
aten = torch.ops.aten

CASES = [
    *[case(n, f, rand(3, 4, **UP)) for n, f in UNARY.items()],
    *[case(n, f, rand(**UP), label="0-d") for n, f in UNARY.items()],
    *[case(n, f, rand(2, 0), label="empty") for n, f in UNARY.items()],
    *[case(n, f, rand(3, dtype=C, **UP), label="complex") for n, f in UNARY.items()],
    *[
        case(
            n,
            lambda x, f=f: f(x.transpose(0, 3).expand(3, 2, 2, 2, 2)),
            rand(2, 2, 2, 1, 2, **UP),
            label="rank 5, strides",
        )
        for n, f in UNARY.items()
    ],
    *[case(n, lambda x, n=n: getattr(x.clone(), n + "_")(), rand(3, **UP), label="in place") for n in UNARY],
    *[case(n, f, rand(3, 1, **UP), rand(4, **UP)) for n, f in BINARY.items()],
    *[case(n, f, rand(**UP), rand(seed=1, **UP), label="0-d") for n, f in BINARY.items()],
    *[case(n, f, rand(2, 0), rand(1), label="empty") for n, f in BINARY.items()],
    *[case(n, f, rand(2, 1, 2, 1, 2, **UP), rand(3, 1, **UP), label="rank 5") for n, f in BINARY.items()],
    *[
        case(
            n,
            lambda x, y, f=f: f(input=x.t(), other=y.expand(3, 2)),
            rand(2, 3, **UP),
            rand(2, **UP),
            label="strides, keywords",
        )
        for n, f in BINARY.items()
    ],
    case("logaddexp", torch.logaddexp, rand(3, dtype=C), rand(3, dtype=C, seed=1), label="complex"),
    case("ldexp", torch.ldexp, rand(3, dtype=C), rand(3, dtype=C, seed=1), label="complex"),
    # torch raises in its backward
    case("ldexp", torch.ldexp, rand(3, dtype=C), rand(3), torch_agrees=False, label="complex-real"),
    case("xlogy", lambda x: torch.xlogy(x, 3), rand(3), label="number"),
    case("xlogy", lambda y: torch.xlogy(3, y), rand(3, **UP), label="number first"),
    case("xlogy", lambda x, y: x.clone().xlogy_(y), rand(2, 3), rand(3, **UP), label="in place"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("function", [torch.logaddexp, torch.logaddexp2])
def test_the_log_of_a_sum_of_nothing_lets_nothing_through(function: object, device: torch.device) -> None:
    # pytorch/pytorch#31829, jax-ml/jax#6811
    for derivative in (first, second):
        one, two = derivative(function, -INF, -INF, device=device)
        assert_values(one, 0.0)
        assert_values(two, 0.0)


@pytest.mark.parametrize("function", [torch.logaddexp, torch.logaddexp2])
def test_a_summand_of_minus_infinity_leaves_all_to_the_other(function: object, device: torch.device) -> None:
    one, two = first(function, [-INF, 1.0], [1.0, -INF], device=device)
    assert_values(one, [0.0, 1.0])
    assert_values(two, [1.0, 0.0])


def test_summands_far_apart_keep_second_derivatives_finite(device: torch.device) -> None:
    one, two = second(torch.logaddexp, [1e3], [0.0], device=device)
    assert_values(one, [0.0])
    assert_values(two, [0.0])


def test_zero_times_the_log_of_zero_has_gradient_zero(device: torch.device) -> None:
    (x,) = first(lambda x: torch.xlogy(x, torch.zeros_like(x)), [0.0], device=device)
    assert_values(x, [0.0])


def test_zero_times_a_log_has_that_log_as_gradient(device: torch.device) -> None:
    x, y = first(torch.xlogy, [0.0], [2.0], device=device)
    assert_values(x, [math.log(2)])
    assert_values(y, [0.0])


def test_xlogy_of_an_integer_keeps_double_precision(device: torch.device) -> None:
    three = torch.tensor([3], device=device)
    assert_values(first(lambda x: torch.xlogy(x, three), [2.0], device=device)[0], [math.log(3)])


def test_the_second_derivative_of_tanh_of_exp_at_zero(device: torch.device) -> None:
    # pytorch/pytorch#18619
    # t = tanh(e^x): t'' = (1 - t^2) e^x (1 - 2 t e^x)
    t = math.tanh(1)
    assert_values(second(lambda x: x.exp().tanh(), [0.0], device=device)[0], [(1 - t * t) * (1 - 2 * t)])


def test_the_second_derivative_of_the_exp_of_a_broadcast_product(device: torch.device) -> None:
    # pytorch/pytorch#1787
    run_case(case("exp", lambda a, b: (a * b).exp(), rand(2, 1), rand(1, 3)), device)
