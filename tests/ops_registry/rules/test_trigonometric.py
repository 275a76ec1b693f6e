"""Rules of ``ops_registry/rules/trigonometric.py``."""

from __future__ import annotations

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case, values

C = torch.complex128
aten = torch.ops.aten
EVERYWHERE = {
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
}
DEGREES = {"deg2rad": torch.deg2rad, "rad2deg": torch.rad2deg}
#: Those that are steep or undefined somewhere, with an interval where they are tame.
SOMEWHERE = {
    "tan": (torch.tan, -1.0, 1.0),
    "asin": (torch.asin, -0.9, 0.9),
    "acos": (torch.acos, -0.9, 0.9),
    "acosh": (torch.acosh, 1.1, 3.0),
    "atanh": (torch.atanh, -0.9, 0.9),
}
ALL = {**{n: (f, -2.0, 2.0) for n, f in {**EVERYWHERE, **DEGREES}.items()}, **SOMEWHERE}

CASES = [
    *[case(n, f, rand(3, 4, low=a, high=b)) for n, (f, a, b) in ALL.items()],
    *[case(n, f, rand(low=a, high=b), label="0-d") for n, (f, a, b) in ALL.items()],
    *[case(n, f, rand(2, 0), label="empty") for n, (f, _, _) in ALL.items()],
    *[
        case(
            n,
            lambda x, f=f: f(x.transpose(0, 3).expand(3, 2, 2, 2, 2)),
            rand(2, 2, 2, 1, 2, low=a, high=b),
            label="rank 5, strides",
        )
        for n, (f, a, b) in ALL.items()
    ],
    *[case(n, f, rand(5, dtype=C), label="complex") for n, (f, _, _) in ALL.items() if n not in DEGREES],
    # torch has no derivative of these three in place
    *[
        case(
            n,
            lambda x, n=n: getattr(x.clone(), n + "_")(),
            rand(3, low=a, high=b),
            label="in place",
            torch_agrees=n not in ("asinh", "acosh", "atanh"),
        )
        for n, (_, a, b) in ALL.items()
    ],
    case("asin", torch.arcsin, rand(3, low=-0.9, high=0.9), label="alias"),
    # on both sides of the branch cuts
    *[
        case(
            n,
            f,
            values([2 + 0.1j, 2 - 0.1j, -2 + 0.1j, -2 - 0.1j, 0.1 + 2j, -0.1 + 2j, 0.1 - 2j, -0.1 - 2j], C),
            label="branch cuts",
        )
        for n, f in {
            "asin": torch.asin,
            "acos": torch.acos,
            "atan": torch.atan,
            "asinh": torch.asinh,
            "acosh": torch.acosh,
            "atanh": torch.atanh,
        }.items()
    ],
    case("tanh_backward", aten.tanh_backward, rand(3), rand(3, seed=1)),
    case("tanh_backward", aten.tanh_backward, rand(3, dtype=C), rand(3, dtype=C, seed=1), label="complex"),
    case("atan2", torch.atan2, rand(3, 1), rand(4)),
    case("atan2", torch.arctan2, rand(), rand(seed=1), label="0-d alias"),
    case("atan2", torch.atan2, rand(2, 0), rand(1), label="empty"),
    case("atan2", torch.atan2, rand(2, 1, 2, 1, 2), rand(3, 1), label="rank 5"),
    case(
        "atan2",
        lambda y, x: torch.atan2(input=y.t(), other=x.expand(3, 2)),
        rand(2, 3),
        rand(2),
        label="strides, keywords",
    ),
    case("atan2", lambda y, x: y.clone().atan2_(x), rand(2, 3), rand(3), label="in place"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_atan2_is_flat_at_the_origin(device: torch.device) -> None:
    # pytorch/pytorch#98276
    y, x = first(torch.atan2, [0.0, 0.0], [0.0, 1.0], device=device)
    assert_values(y, [0.0, 1.0])
    assert_values(x, [0.0, 0.0])


def test_the_second_derivative_of_atan2_is_finite_at_the_origin(device: torch.device) -> None:
    y, x = second(torch.atan2, [0.0], [0.0], device=device)
    assert_values(y, [0.0])
    assert_values(x, [0.0])


def test_atan2_of_tiny_numbers_is_steep_not_flat(device: torch.device) -> None:
    y, x = first(torch.atan2, [1e-200], [1e-200], device=device)
    assert_values(y, [0.5e200])
    assert_values(x, [-0.5e200])


def test_tanh_saturates_to_a_slope_of_zero(device: torch.device) -> None:
    assert_values(first(torch.tanh, [-100.0, 0.0, 100.0], device=device)[0], [0.0, 1.0, 0.0])


def test_acosh_has_no_slope_where_it_has_no_value(device: torch.device) -> None:
    (slope,) = first(torch.acosh, [-2.0, 0.5], device=device)
    assert slope.isnan().all()


def test_tanh_and_sigmoid_keep_nothing_but_their_result() -> None:
    import ops_registry

    keeps = {r.op: r.keeps for r in ops_registry.list_rules()}
    assert keeps["tanh"] == keeps["sigmoid"] == ("result",)
