"""Rules of ``ops_registry/rules/arithmetic.py``."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case, values

C = torch.complex128
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
AWAY = {"low": 0.5, "high": 2.0}

CASES = [
    *[case(n, f, rand(3, 4), rand(3, 4, seed=1, **AWAY)) for n, f in BINARY.items()],
    *[case(n, f, rand(3, 1), rand(4, **AWAY), label="broadcast") for n, f in BINARY.items()],
    *[case(n, f, rand(), rand(seed=1, **AWAY), label="0-d") for n, f in BINARY.items()],
    *[case(n, f, rand(2, 0, 3), rand(3), label="empty") for n, f in BINARY.items()],
    *[case(n, f, rand(2, 1, 2, 3, 1), rand(2, 1, 1, 2, **AWAY), label="rank 5") for n, f in BINARY.items()],
    *[case(n, f, rand(3, dtype=C), rand(3, dtype=C, **AWAY), label="complex") for n, f in BINARY.items()],
    *[case(n, f, rand(3, dtype=C), rand(3, **AWAY), label="complex-real") for n, f in BINARY.items()],
    *[case(n, f, rand(3), rand(3, dtype=C, **AWAY), label="real-complex") for n, f in BINARY.items()],
    *[case(n, partial(f, other=3), rand(3), label="number as keyword") for n, f in BINARY.items()],
    *[case(n, partial(f, other=1 + 2j), rand(3), label="complex number") for n, f in BINARY.items()],
    *[
        case(n, lambda a, b, f=f: f(a.t(), b.expand(3, 4)), rand(4, 3), rand(4, **AWAY), label="strides")
        for n, f in BINARY.items()
    ],
    case("add", lambda a, b: torch.add(a, b, alpha=2.5), rand(3, 1), rand(4), label="alpha"),
    case(
        "add",
        lambda a, b: torch.add(a, b, alpha=2 + 1j),
        rand(3, dtype=C),
        rand(3, dtype=C, seed=1),
        label="complex alpha",
    ),
    case("sub", lambda a, b: torch.sub(a, b, alpha=2.5), rand(3, 1), rand(4), label="alpha"),
    case(
        "sub",
        lambda a, b: torch.sub(a, b, alpha=2 + 1j),
        rand(3, dtype=C),
        rand(3, dtype=C, seed=1),
        label="complex alpha",
    ),
    case("rsub", torch.rsub, rand(3, 1), rand(4)),
    case("abs", torch.abs, rand(3, 4)),
    case("abs", torch.abs, rand(), label="0-d"),
    case("abs", torch.abs, rand(2, 0), label="empty"),
    case(
        "abs",
        lambda x: torch.abs(x.transpose(0, 3).expand(3, 2, 2, 2, 2)),
        rand(2, 2, 2, 1, 2),
        label="rank 5, strides",
    ),
    case("abs", lambda x: (x * x).abs_(), rand(3), label="in place"),
    case("abs", torch.abs, rand(2, 3, dtype=C), label="complex"),
    case("abs", torch.absolute, rand(3), label="alias"),
    case("abs", abs, rand(3), label="builtin"),
    case(
        "rsub", lambda a, b: torch.rsub(a, b, alpha=2 + 1j), rand(3, dtype=C), rand(3, dtype=C, seed=1), label="alpha"
    ),
    case("rsub", lambda a: 1 - a, rand(3), label="operator"),
    case("mul", lambda a: a * a, rand(3), label="both sides the same"),
    case("div", lambda a, b: torch.div(a, b, rounding_mode="floor"), rand(3), rand(3, seed=1, **AWAY), label="floor"),
    case("div", lambda a, b: torch.div(a, b, rounding_mode="trunc"), rand(3), rand(3, seed=1, **AWAY), label="trunc"),
    case("div", lambda a: 2 / a, rand(3, **AWAY), label="reflected"),
    case("div", torch.true_divide, rand(3), rand(3, seed=1, **AWAY), label="true_divide"),
    # torch has no derivative of floor_divide
    case("floor_divide", torch.floor_divide, rand(3, 1), rand(4, **AWAY), second="differences", torch_agrees=False),
    case("floor_divide", lambda a: a // 2, rand(3), second="differences", torch_agrees=False, label="operator"),
    *[case(n, f, rand(3, 1), rand(4, **AWAY)) for n, f in {"fmod": torch.fmod, "remainder": torch.remainder}.items()],
    *[
        case(n, f, rand(3), rand(3, seed=1, low=-2, high=-0.5), label="negative divisor")
        for n, f in {"fmod": torch.fmod, "remainder": torch.remainder}.items()
    ],
    case("remainder", lambda a: a % 0.7, rand(5), label="operator"),
    case("neg", torch.neg, rand(2, 3)),
    case("neg", torch.negative, rand(2, 3, dtype=C), label="complex alias"),
    case("positive", lambda a: +a * a, rand(3)),
    case("reciprocal", torch.reciprocal, rand(2, 3, **AWAY)),
    case("reciprocal", torch.reciprocal, rand(3, dtype=C), label="complex"),
    case("reciprocal", torch.reciprocal, rand(0), label="empty"),
    *[
        case(n, f, rand(2, 3), rand(3, seed=1), rand(2, 1, **AWAY))
        for n, f in {"addcmul": torch.addcmul, "addcdiv": torch.addcdiv}.items()
    ],
    *[
        case(
            n,
            partial(f, value=2 - 1j),
            rand(3, dtype=C),
            rand(3, dtype=C, seed=1),
            rand(3, dtype=C, seed=2, **AWAY),
            label="value",
        )
        for n, f in {"addcmul": torch.addcmul, "addcdiv": torch.addcdiv}.items()
    ],
    case("lerp", torch.lerp, rand(2, 3), rand(3), rand(2, 1)),
    case("lerp", torch.lerp, rand(3, dtype=C), rand(3, dtype=C, seed=1), rand(3, dtype=C, seed=2), label="complex"),
    case("lerp", lambda a, b: torch.lerp(a, b, 0.3), rand(2, 3), rand(3), label="number"),
    case("lerp", lambda a, b: torch.lerp(a, b, weight=1), rand(2, 3), rand(3), label="number 1"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


IN_PLACE = [
    case("add", lambda a, b: a.clone().add_(b, alpha=2), rand(2, 3), rand(3)),
    case("sub", lambda a, b: a.clone().sub_(b, alpha=2), rand(2, 3), rand(3)),
    case("mul", lambda a, b: a.clone().mul_(b), rand(2, 3), rand(3)),
    case("div", lambda a, b: a.clone().div_(b), rand(2, 3), rand(3, **AWAY)),
    case("addcmul", lambda a, b, c: a.clone().addcmul_(b, c, value=3), rand(2, 3), rand(3), rand(2, 1)),
    case("addcdiv", lambda a, b, c: a.clone().addcdiv_(b, c), rand(2, 3), rand(3), rand(2, 1, **AWAY)),
    case("lerp", lambda a, b, c: a.clone().lerp_(b, c), rand(2, 3), rand(3), rand(2, 1)),
    case("reciprocal", lambda a: a.clone().reciprocal_(), rand(3, **AWAY)),
    case("neg", lambda a: a.clone().neg_(), rand(3)),
    case("remainder", lambda a, b: a.clone().remainder_(b), rand(2, 3), rand(3, **AWAY)),
]


@pytest.mark.parametrize("c", IN_PLACE, ids=str)
def test_the_in_place_spelling_has_the_same_derivatives(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_an_axis_of_length_zero_gives_its_broadcast_operand_zeros(device: torch.device) -> None:
    # pytorch/pytorch#15223
    def function(b: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 0, dtype=b.dtype, device=device) + b.unsqueeze(1)

    (gradient,) = first(function, [1.0, 2.0, 3.0, 4.0], device=device)
    assert_values(gradient, [0.0, 0.0, 0.0, 0.0])


def test_both_operands_of_a_product_may_be_broadcast(device: torch.device) -> None:
    # pytorch/pytorch#1787, pytorch/pytorch#15223
    columns, rows = first(torch.mul, [[1.0], [2.0]], [[3.0, 4.0, 5.0]], device=device)
    assert_values(columns, [[12.0], [12.0]])
    assert_values(rows, [[3.0, 3.0, 3.0]])


def test_a_0_d_double_factor_of_a_single_vector_gets_a_double_gradient(device: torch.device) -> None:
    # pytorch/pytorch#22273
    c = case("mul", torch.mul, values(2.0), values([3.0, 4.0], torch.float32), differences=False, rtol=1e-6)
    run_case(c, device)


def test_the_quotient_of_tiny_numbers_has_a_finite_gradient_in_single_precision(device: torch.device) -> None:
    _, divisor = first(torch.div, [1e-30], [1e-25], dtype=torch.float32, device=device)
    assert_values(divisor, [-1e20])


def test_an_integer_divisor_tensor_keeps_double_precision(device: torch.device) -> None:
    three = torch.tensor([3], device=device)
    (gradient,) = first(lambda b: torch.addcdiv(b, b, three), [1.0], device=device)
    assert_values(gradient, [4 / 3])


def test_the_quotient_of_a_remainder_is_its_slope(device: torch.device) -> None:
    number, divisor = first(torch.remainder, [5.0, -5.0, 4.5], [3.0, 3.0, 2.0], device=device)
    assert_values(number, [1.0, 1.0, 1.0])
    assert_values(divisor, [-1.0, 2.0, -2.0])


def test_the_slope_of_fmod_rounds_towards_zero(device: torch.device) -> None:
    _, divisor = first(torch.fmod, [5.0, -5.0], [3.0, 3.0], device=device)
    assert_values(divisor, [-1.0, 1.0])


def test_a_floored_quotient_is_flat(device: torch.device) -> None:
    for derivative in first(torch.floor_divide, [5.0, 4.0, -5.0], [3.0, 2.0, 3.0], device=device):
        assert_values(derivative, [0.0, 0.0, 0.0])


def test_a_number_over_a_tensor_floored_is_flat(device: torch.device) -> None:
    assert_values(first(lambda b: 7 // b, [2.0, 4.0], device=device)[0], [0.0, 0.0])


def test_a_number_modulo_a_tensor_has_a_gradient(device: torch.device) -> None:
    (divisor,) = first(lambda b: 7 % b, [2.0, 4.0], device=device)
    assert_values(divisor, [-3.0, -1.0])


def test_lerp_at_a_weight_close_to_one_loses_no_digits(device: torch.device) -> None:
    start, _, _ = first(torch.lerp, [0.0], [1.0], [1 - 2.0**-52], device=device)
    assert_values(start, [2.0**-52])


def test_abs_is_flat_at_zero(device: torch.device) -> None:
    assert_values(first(torch.abs, [-2.0, 0.0, -0.0, 2.0], device=device)[0], [-1.0, 0.0, 0.0, 1.0])


def test_complex_abs_of_a_tiny_number_points_away_from_zero(device: torch.device) -> None:
    # pytorch/pytorch#96543, HIPS/autograd#100
    points = [0j, -1.0568e-23 + 0j, 3 + 4j]
    (slope,) = first(torch.abs, points, dtype=torch.complex64, device=device)
    assert_values(slope, [0j, -1 + 0j, 0.6 + 0.8j])


def test_the_second_derivative_of_complex_abs_is_finite_at_zero(device: torch.device) -> None:
    assert_values(second(torch.abs, [0j], dtype=C, device=device)[0], [0j])
