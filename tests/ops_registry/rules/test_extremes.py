"""Rules of ``ops_registry/rules/extremes.py``."""

from __future__ import annotations

import pytest
import torch
from support.analytic import assert_values, first
from support.checking import Case, case, rand, run_case, values

import tracer

INF, NAN = float("inf"), float("nan")
OF_TWO = {"maximum": torch.maximum, "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin}
TWO_WITH_TIES = (values([1.0, 2.0, 3.0]), values([1.0, 3.0, 2.0]))
TIES = values([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])


def minimum_and_maximum(x: torch.Tensor, **options: object) -> list[torch.Tensor]:
    return [*torch.aminmax(x, **options)]


CASES = [
    case("max", torch.max, rand(3, 4)),
    case("max", lambda x: x.max(), rand(), label="0-d"),
    case("max", lambda x: x.t().max(), rand(3, 2), label="transposed"),
    case("max", torch.max, TIES, label="ties", differences=False),
    case("max", torch.max, values([1.0, NAN, NAN, 2.0]), label="nan", differences=False),
    case("max", torch.ops.aten.max.default, rand(2, 1, 2, 3, 2), label="rank-5-overload"),
    case("min", torch.min, rand(3, 4)),
    case("min", torch.min, TIES, label="ties", differences=False),
    case("max.dim", lambda x: torch.max(x, 1), rand(3, 4)),
    case("max.dim", lambda x: x.max(dim=-1, keepdim=True), rand(3, 4), label="keepdim"),
    case("max.dim", lambda x: torch.max(x, axis=0, keepdims=True), rand(3, 4), label="numpy-names"),
    case("max.dim", lambda x: x.t().max(0)[0], rand(3, 4), label="transposed"),
    case("max.dim", lambda x: x.max(0).values, rand(), label="0-d"),
    case("max.dim", lambda x: x.max(1), rand(0, 3), label="empty"),
    case("max.dim", lambda x: x.max(3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("max.dim", lambda x: x.max(1), TIES, label="ties", differences=False),
    case("max.dim", lambda x: torch.ops.aten.max.dim(x, 1), rand(3, 4), label="overload"),
    case("min.dim", lambda x: torch.min(x, 1), rand(3, 4)),
    case("min.dim", lambda x: x.min(dim=-1, keepdim=True), rand(3, 4), label="keepdim"),
    case("max.other", torch.max, rand(3, 1), rand(4, seed=1), label="broadcast"),
    case("max.other", lambda a, b: a.max(other=b), rand(3), rand(3, seed=1), label="keyword"),
    case("min.other", torch.min, rand(3, 1), rand(4, seed=1), label="broadcast"),
    case("amax", torch.amax, rand(3, 4)),
    case("amax", lambda x: x.amax(1), rand(3, 4), label="dim"),
    case("amax", lambda x: x.amax((0, -1), keepdim=True), rand(3, 4, 2), label="dims-keepdim"),
    case("amax", lambda x: torch.amax(x, axis=1, keepdims=True), rand(3, 4), label="numpy-names"),
    case("amax", lambda x: x.amax(()), rand(3, 4), label="no-dims"),
    case("amax", lambda x: x.amax((1, 3)), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("amax", torch.amax, rand(), label="0-d"),
    case("amax", lambda x: x.amax(1), rand(0, 3), label="empty"),
    case("amax", lambda x: x.amax(1), TIES, label="ties", differences=False),
    case("amin", torch.amin, rand(3, 4)),
    case("amin", lambda x: x.amin((0, 2)), rand(3, 4, 2), label="dims"),
    case("amin", lambda x: x.amin(1), TIES, label="ties", differences=False),
    case("aminmax", minimum_and_maximum, rand(3, 4)),
    case("aminmax", lambda x: minimum_and_maximum(x, keepdim=True), rand(3, 4), label="all-keepdim"),
    case("aminmax", lambda x: minimum_and_maximum(x, dim=1), rand(3, 4), label="dim"),
    case("aminmax", lambda x: minimum_and_maximum(x, dim=0, keepdim=True), rand(3, 4, 2), label="dim-keepdim"),
    case("aminmax", lambda x: torch.aminmax(x).max, rand(3, 4), label="one-result"),
    case("aminmax", lambda x: minimum_and_maximum(x, dim=1), TIES, label="ties", differences=False),
    case("aminmax", minimum_and_maximum, rand(), label="0-d"),
    *[case(n, f, rand(3, 1), rand(4)) for n, f in OF_TWO.items()],
    *[case(n, f, rand(), rand(seed=1), label="0-d") for n, f in OF_TWO.items()],
    *[case(n, f, rand(2, 0), rand(1), label="empty") for n, f in OF_TWO.items()],
    *[case(n, f, rand(2, 1, 2, 1, 2), rand(3, 1), label="rank 5") for n, f in OF_TWO.items()],
    *[
        case(n, lambda x, y, f=f: f(input=x.t(), other=y.expand(3, 2)), rand(2, 3), rand(2), label="strides, keywords")
        for n, f in OF_TWO.items()
    ],
    *[case(n, OF_TWO[n], *TWO_WITH_TIES, label="ties") for n in ("maximum", "minimum")],
    # as torch: all of a tie to the first argument of fmax and fmin, where the central difference is half of each
    *[case(n, OF_TWO[n], *TWO_WITH_TIES, differences=False, label="ties") for n in ("fmax", "fmin")],
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("extreme", [torch.max, torch.amax, lambda x: torch.aminmax(x).max])
def test_full_reduction_shares_ties_evenly(extreme, device: torch.device) -> None:
    # pytorch/pytorch#43519, pytorch/pytorch#56734, tinygrad/tinygrad#229
    x = tracer.track(torch.tensor([1.0, 3.0, 3.0], device=device), True)
    extreme(x).backward()
    assert x.grad.tolist() == [0.0, 0.5, 0.5]


def test_reduction_along_a_dimension_gives_to_the_chosen_index_alone(device: torch.device) -> None:
    x = tracer.track(torch.tensor([1.0, 3.0, 3.0], device=device), True)
    values, index = x.max(0)
    values.backward()
    assert x.grad.tolist() == [float(i == int(index)) for i in range(3)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("extreme", [torch.max, torch.min, torch.amax, torch.amin])
def test_more_ties_than_float16_can_count(extreme, dtype: torch.dtype, device: torch.device) -> None:
    # tinygrad/tinygrad#12296
    x = tracer.track(torch.ones(70000, dtype=dtype, device=device), True)
    extreme(x).backward()
    assert torch.equal(x.grad, torch.full((70000,), 1 / 70000, device=device).to(dtype))


def test_share_of_ties_in_float64_is_exact_to_float64(device: torch.device) -> None:
    x = tracer.track(torch.ones(3, dtype=torch.float64, device=device), True)
    x.amax().backward()
    assert x.grad.tolist() == [1 / 3] * 3


def test_indices_are_plain_and_carry_no_gradient(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 3, device=device), True)
    assert type(x.max(1).indices) is torch.Tensor


def test_reduction_along_a_dimension_keeps_the_indices_alone(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 3, device=device), True)
    kept = [k for k in x.max(1).values.grad_fn.saved if isinstance(k, torch.Tensor)]
    assert [k.dtype for k in kept] == [torch.int64]


@pytest.mark.parametrize("extreme", [torch.max, torch.min, torch.amax, torch.amin], ids=lambda f: f.__name__)
def test_the_extreme_of_nothing_is_refused_as_in_torch(extreme, device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="dim"):
        extreme(tracer.track(torch.ones(0, device=device), True))


@pytest.mark.parametrize("function", [torch.maximum, torch.minimum])
def test_ties_are_shared_by_halves(function: object, device: torch.device) -> None:
    for side in first(function, [2.0, INF, -INF], [2.0, INF, -INF], device=device):
        assert_values(side, [0.5, 0.5, 0.5])


@pytest.mark.parametrize("function", [torch.fmax, torch.fmin])
def test_the_first_of_fmax_and_fmin_takes_all_of_a_tie(function: object, device: torch.device) -> None:
    x, y = first(function, [2.0, INF, -INF, NAN], [2.0, INF, -INF, NAN], device=device)
    assert_values(x, [1.0, 1.0, 1.0, 1.0])
    assert_values(y, [0.0, 0.0, 0.0, 0.0])


def test_the_larger_of_two_takes_all(device: torch.device) -> None:
    # pytorch/pytorch#43519
    x, y = first(torch.maximum, [1.0, 2.0], [1.0, 3.0], device=device)
    assert_values(x, [0.5, 0.0])
    assert_values(y, [0.5, 1.0])


def test_fmax_leaves_all_to_the_number_beside_a_nan(device: torch.device) -> None:
    x, y = first(torch.fmax, [NAN, 1.0], [1.0, NAN], device=device)
    assert_values(x, [0.0, 1.0])
    assert_values(y, [1.0, 0.0])


def test_fmin_leaves_all_to_the_number_beside_a_nan(device: torch.device) -> None:
    x, y = first(torch.fmin, [NAN, 1.0], [1.0, NAN], device=device)
    assert_values(x, [0.0, 1.0])
    assert_values(y, [1.0, 0.0])
