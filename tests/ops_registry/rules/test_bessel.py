"""Rules of ``ops_registry/rules/bessel.py``. torch has a derivative of i0 and i1 alone: of the others differences decide."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.analytic import assert_values, first, second
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

#: Those of which torch has a derivative, each with an interval where it is tame.
FIRST_KIND = {
    "i0": (torch.i0, -2.0, 2.0),
    "special_i1": (S.i1, -2.0, 2.0),
    "special_i0e": (S.i0e, 0.1, 2.0),
    "special_i1e": (S.i1e, 0.1, 2.0),
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
    *[case(n, f, rand(3, 4, low=a, high=b)) for n, (f, a, b) in FIRST_KIND.items()],
    *[case(n, f, rand(low=a, high=b), label="0-d") for n, (f, a, b) in FIRST_KIND.items()],
    *[case(n, f, rand(2, 0), label="empty") for n, (f, _, _) in FIRST_KIND.items()],
    *[
        case(
            n,
            lambda x, f=f: f(x.transpose(0, 3).expand(3, 2, 2, 2, 2)),
            rand(2, 2, 2, 1, 2, low=a, high=b),
            label="rank 5, strides",
        )
        for n, (f, a, b) in FIRST_KIND.items()
    ],
    case("i0", lambda x: x.clone().i0_(), rand(3, low=0.1, high=0.9), label="in place"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
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


def test_bessel_functions_at_zero(device: torch.device) -> None:
    # I0 = 1 + x^2/4 + ..., I1 = x/2 + x^3/16 + ...
    assert_values(first(torch.i0, [0.0], device=device)[0], [0.0])
    assert_values(second(torch.i0, [0.0], device=device)[0], [0.5])
    assert_values(first(S.i1, [0.0], device=device)[0], [0.5])
    assert_values(second(S.i1, [0.0], device=device)[0], [0.0])


def test_scaled_bessel_functions_at_zero(device: torch.device) -> None:
    assert_values(first(S.i0e, [0.0], device=device)[0], [0.0])
    assert_values(first(S.i1e, [0.0], device=device)[0], [0.5])
