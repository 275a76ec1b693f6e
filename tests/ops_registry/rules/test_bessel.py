"""Rules of ``ops_registry/rules/bessel.py``. torch has no derivative of any of these: differences decide."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.analytic import assert_values, first
from support.checking import Case, Make, case, rand, run_case, values

INF = math.inf
S = torch.special
ANYWHERE = {"low": -4.0, "high": 4.0}
POSITIVE = {"low": 0.5, "high": 5.0}
#: Each function, and where it is smooth.
FUNCTIONS = {
    "bessel_j0": ANYWHERE,
    "bessel_j1": ANYWHERE,
    "bessel_y0": POSITIVE,
    "bessel_y1": POSITIVE,
    "modified_bessel_k0": POSITIVE,
    "modified_bessel_k1": POSITIVE,
    "scaled_modified_bessel_k0": POSITIVE,
    "scaled_modified_bessel_k1": POSITIVE,
    "spherical_bessel_j0": ANYWHERE,
}

HERMITE = (S.hermite_polynomial_h, S.hermite_polynomial_he)


def ours(rule: str, function: Any, *inputs: Make, **options: Any) -> Case:
    return case(rule, function, *inputs, second="differences", torch_agrees=False, **options)


CASES = [
    *(ours(f"special_{n}", getattr(S, n), rand(3, 4, **where)) for n, where in FUNCTIONS.items()),
    *(ours(f"special_{n}", getattr(S, n), rand(2, 1, 2, 3, 2, **w), label="rank-5") for n, w in FUNCTIONS.items()),
    *(ours(f"special_{n}", getattr(S, n), rand(0, 3), label="empty") for n in FUNCTIONS),
    ours("special_bessel_j1", S.bessel_j1, values(0.0), label="zero"),
    ours("special_spherical_bessel_j0", S.spherical_bessel_j0, values([0.0, 1e-9, 0.3, 20.0]), label="near-zero"),
    ours("i0", S.modified_bessel_i0, rand(3, 4, **ANYWHERE), label="modified"),
    ours("special_i1", S.modified_bessel_i1, rand(3, 4, **ANYWHERE), label="modified"),
    *(
        ours(f.__name__, lambda x, f=f, n=n: f(x, n), rand(3, 4), label=f"degree-{n}")
        for f in HERMITE
        for n in (-1, 0, 1, 2, 5)
    ),
    *(
        ours(
            f.__name__,
            lambda x, f=f: f(x, torch.arange(4.0, device=x.device)),
            rand(3, 1),
            label="degrees",
        )
        for f in HERMITE
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_slopes_at_zero(device: torch.device) -> None:
    assert_values(first(S.bessel_j0, 0.0, device=device)[0], 0.0)
    assert_values(first(S.bessel_j1, 0.0, device=device)[0], 0.5)
    assert_values(first(S.spherical_bessel_j0, 0.0, device=device)[0], 0.0)


@pytest.mark.parametrize(
    ("function", "slope"),
    [
        (S.bessel_y0, INF),
        (S.bessel_y1, INF),
        (S.modified_bessel_k0, -INF),
        (S.modified_bessel_k1, -INF),
        (S.scaled_modified_bessel_k0, -INF),
        (S.scaled_modified_bessel_k1, -INF),
    ],
)
def test_functions_of_the_second_kind_are_infinitely_steep_at_zero(
    function: Any, slope: float, device: torch.device
) -> None:
    assert_values(first(function, 0.0, device=device)[0], slope)


def test_degree_of_a_polynomial_has_no_gradient(device: torch.device) -> None:
    _, by_degree = first(S.hermite_polynomial_h, [1.5, 2.5], [2.0, 3.0], device=device)
    assert_values(by_degree, [0.0, 0.0])


def test_degree_is_cut_off_to_a_whole_number(device: torch.device) -> None:
    assert_values(first(lambda x: S.hermite_polynomial_he(x, 2.7), 1.5, device=device)[0], 3.0)
