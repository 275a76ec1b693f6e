"""Rules of ``ops_registry/rules/selection.py``."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case

import tracer

C = torch.complex128
INF, NAN = math.inf, math.nan
CASES = [
    case("clamp", partial(torch.clamp, min=-1, max=1), rand(3, 4)),
    case("clamp", partial(torch.clamp, min=-1), rand(3, 4), label="min"),
    case("clamp", partial(torch.clamp, max=1), rand(3, 4), label="max"),
    case("clamp", partial(torch.clip, min=1, max=-1), rand(3, 4), label="crossed"),
    case("clamp", torch.clamp, rand(3, 4), rand(4, low=-1, high=0), rand(3, 1, low=0, high=1), label="tensors"),
    case("clamp", torch.clamp, rand(3, 4), rand(4), rand(3, 1), label="crossed tensors"),
    case("clamp", lambda x, low: torch.clamp(x, min=low), rand(3, 4), rand(4), label="min tensor"),
    case("clamp", lambda x, high: torch.clamp(x, max=high), rand(3, 4), rand(4), label="max tensor"),
    case("clamp", partial(torch.clamp, min=-1), rand(2, 0), label="empty"),
    case("clamp", partial(torch.clamp, min=-1), rand(), label="0-d"),
    case("clamp", lambda x: (x * x).clamp_(0.5, 2), rand(5), label="in place"),
    case("clamp", lambda x: x.transpose(0, 4).clamp(-1, 1), rand(2, 1, 2, 1, 3), label="rank 5"),
    case("clamp_min", partial(torch.clamp_min, min=-1), rand(3, 4)),
    case("clamp_min", torch.clamp_min, rand(3, 4), rand(4), label="tensor"),
    case("clamp_max", partial(torch.clamp_max, max=1), rand(3, 4)),
    case("clamp_max", torch.clamp_max, rand(3, 4), rand(4), label="tensor"),
    case("where", lambda x, y: torch.where(x > 0, x * x, y), rand(3, 1), rand(4)),
    case("where", lambda x: x.where(x > 0, 3.0), rand(3, 4), label="method"),
    case("where", lambda x: torch.where(x > 0, 3, x), rand(3, 4), label="number first"),
    case(
        "where",
        lambda x, y: torch.where(condition=x.real > 0, input=x, other=y),
        rand(3, dtype=C),
        rand(3, dtype=C, seed=1),
        label="complex, keywords",
    ),
    # torch raises in its backward
    case(
        "where",
        lambda x, y: torch.where(x.real > 0, x, y),
        rand(3, dtype=C),
        rand(3),
        torch_agrees=False,
        label="complex-real",
    ),
    case(
        "where",
        lambda x, y: torch.where(torch.tensor(True, device=x.device), x, y),
        rand(3),
        rand(2, 1),
        label="0-d condition",
    ),
    case("where", lambda x, y: torch.where(x > 0, x, y), rand(2, 0), rand(1), label="empty"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_a_value_on_the_bound_is_inside(device: torch.device) -> None:
    assert_values(
        first(lambda x: x.clamp(0, 1), [-1.0, 0.0, 0.5, 1.0, 2.0], device=device)[0], [0.0, 1.0, 1.0, 1.0, 0.0]
    )


def test_a_value_on_a_tensor_bound_is_inside_and_the_bound_gets_nothing(device: torch.device) -> None:
    x, low, high = first(torch.clamp, [0.0, 1.0], [0.0, 0.0], [1.0, 1.0], device=device)
    assert_values(x, [1.0, 1.0])
    assert_values(low, [0.0, 0.0])
    assert_values(high, [0.0, 0.0])


def test_where_bounds_cross_the_upper_one_takes_all(device: torch.device) -> None:
    x, low, high = first(torch.clamp, [0.0, 5.0], [3.0, 3.0], [2.0, 2.0], device=device)
    assert_values(x, [0.0, 0.0])
    assert_values(low, [0.0, 0.0])
    assert_values(high, [1.0, 1.0])


def test_a_clamped_nan_lets_nothing_through(device: torch.device) -> None:
    assert_values(first(lambda x: x.clamp(0, 1), [NAN], device=device)[0], [0.0])


def test_an_infinite_gradient_stops_at_what_was_clamped(device: torch.device) -> None:
    assert_values(first(lambda x: x.clamp_min(0).sqrt(), [-1.0, 4.0], device=device)[0], [0.0, 0.25])


def test_the_branch_not_taken_stays_finite_when_it_is_guarded(device: torch.device) -> None:
    # pytorch/pytorch#36923, pytorch/pytorch#68425, pytorch/pytorch#187297, tinygrad/tinygrad#15806
    def guarded(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, torch.where(x > 0, x, torch.ones_like(x)).sqrt(), x)

    assert_values(first(guarded, [-1.0, -4.0, 4.0], device=device)[0], [1.0, 1.0, 0.25])
    assert_values(second(guarded, [-1.0, 4.0], device=device)[0], [0.0, -1 / 32])


def test_where_of_one_argument_gives_indices(device: torch.device) -> None:
    x = tracer.tensor([0.0, 2.0, 3.0], device=device, requires_grad=True)
    (found,) = torch.where(x)
    assert found.tolist() == [1, 2]
    assert not found.requires_grad


def test_where_between_two_dtypes_gives_each_side_its_own(device: torch.device) -> None:
    c = case(
        "where", lambda x, y: torch.where(x > 0, x, y), rand(4, dtype=torch.float32), rand(4, seed=1), differences=False
    )
    run_case(c, device)


def test_where_between_complex_and_real_gives_the_real_side_a_real_gradient(device: torch.device) -> None:
    z = tracer.tensor([1j, 2j], dtype=torch.complex128, device=device, requires_grad=True)
    x = tracer.tensor([3.0, 4.0], dtype=torch.float64, device=device, requires_grad=True)
    torch.where(torch.tensor([True, False], device=device), z, x).real.sum().backward()
    assert_values(z.grad, [1 + 0j, 0j])
    assert_values(x.grad, [0.0, 1.0])
