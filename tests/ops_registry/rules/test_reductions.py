"""Rules of ``ops_registry/rules/reductions.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, rand, run_case, values
from support.leaves import tracked

COMPLEX = torch.complex128
NAN = float("nan")

CASES = [
    case("sum", torch.sum, rand(3, 4), label="all"),
    case("sum", lambda x: x.sum(1), rand(3, 4), label="dim"),
    case("sum", lambda x: x.sum((0, -1), True), rand(3, 4, 2), label="dims-keepdim"),
    case("sum", lambda x: x.sum([]), rand(3, 4), label="no-dims"),
    case("sum", lambda x: torch.sum(x, axis=0, keepdims=True), rand(3, 4), label="numpy-names"),
    case("sum", lambda x: x.t().sum(0), rand(3, 4), label="transposed"),
    case("sum", lambda x: x.expand(3, 4).sum(1), rand(1, 4), label="expanded"),
    case("sum", lambda x: x.sum((1, 3)), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("sum", torch.sum, rand(), label="0-d"),
    case("sum", lambda x: x.sum(-1), rand(), label="0-d-dim"),
    case("sum", lambda x: x.sum(0), rand(0, 3), label="empty"),
    case("sum", lambda x: x.sum(1), rand(3, 4, dtype=COMPLEX), label="complex"),
    case(
        "sum",
        lambda x: x.sum(1, dtype=torch.float64),
        rand(3, 4, dtype=torch.float32),
        label="dtype",
        differences=False,
    ),
    case("sum", lambda x: torch.ops.aten.sum.dim_IntList(x, [0]), rand(3, 4), label="overload"),
    case("sum_to_size", lambda x: x.sum_to_size(3, 1), rand(2, 3, 4)),
    case("sum_to_size", lambda x: x.sum_to_size((4,)), rand(2, 3, 4), label="tuple"),
    case("sum_to_size", lambda x: x.sum_to_size(3, 4), rand(3, 4), label="same-size"),
    case("sum_to_size", lambda x: x.sum_to_size(()), rand(3, 4, dtype=COMPLEX), label="complex"),
    case("nansum", torch.nansum, rand(3, 4), label="all"),
    case(
        "nansum",
        lambda x: x.nansum(-1, keepdim=True),
        values([[1.0, NAN, 2.0], [NAN, NAN, NAN]]),
        label="nan",
        differences=False,
    ),
    case("nansum", lambda x: x.nansum((0, 2)), rand(2, 3, 2, 1, 2), label="rank-5"),
    case("mean", torch.mean, rand(3, 4), label="all"),
    case("mean", lambda x: x.mean(1), rand(3, 4), label="dim"),
    case("mean", lambda x: x.mean((0, -1), keepdim=True), rand(3, 4, 2), label="dims-keepdim"),
    case("mean", lambda x: torch.mean(x, axis=(0, 1), keepdims=True), rand(3, 4), label="numpy-names"),
    case("mean", lambda x: x.mean(dim=[]), rand(3, 4), label="no-dims"),
    case("mean", lambda x: x.mean((1, 3)), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("mean", torch.mean, rand(), label="0-d"),
    case("mean", lambda x: x.mean(0), rand(2, 0), label="empty"),
    case("mean", lambda x: x.mean(1), rand(2, 0), label="empty-dim", differences=False),
    case("mean", lambda x: x.mean(0), rand(3, 4, dtype=COMPLEX), label="complex"),
    case(
        "mean", lambda x: x.mean(0, dtype=torch.float64), rand(3, dtype=torch.float32), label="dtype", differences=False
    ),
    case("nanmean", torch.nanmean, rand(3, 4), label="all"),
    case(
        "nanmean",
        lambda x: x.nanmean(1, True),
        values([[1.0, NAN, 2.0], [NAN, 3.0, NAN]]),
        label="nan",
        differences=False,
    ),
    case("prod", torch.prod, rand(3, 4), label="all"),
    case("prod", lambda x: x.prod(1), rand(3, 4), label="dim"),
    case("prod", lambda x: x.prod(-1, keepdim=True), rand(3, 4), label="keepdim"),
    case("prod", lambda x: torch.prod(x, axis=0, keepdims=True), rand(3, 4), label="numpy-names"),
    case("prod", lambda x: x.t().prod(0), rand(3, 4), label="transposed"),
    case("prod", lambda x: x.prod(3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("prod", torch.prod, rand(), label="0-d"),
    case("prod", lambda x: x.prod(0), rand(), label="0-d-dim"),
    case("prod", lambda x: x.prod(0), rand(0, 3), label="empty"),
    case("prod", torch.prod, rand(0), label="empty-all"),
    case("prod", lambda x: x.prod(0), rand(3, 4, dtype=COMPLEX), label="complex"),
    case(
        "prod",
        lambda x: x.prod(0, dtype=torch.float64),
        rand(3, dtype=torch.float32),
        label="dtype",
        differences=False,
        rtol=1e-6,
        atol=1e-6,  # one rounding of float32
    ),
    case("prod", torch.prod, values([2.0, 0.0, 3.0]), label="one-zero"),
    case("prod", torch.prod, values([2.0, 0.0, 3.0, 0.0]), label="two-zeros"),
    case("prod", torch.prod, values([0.0, 0.0, 0.0, 2.0]), label="three-zeros"),
    case(
        "prod",
        lambda x: x.prod(1),
        values([[1.0, 2.0, 3.0], [1.0, 0.0, 3.0], [0.0, 2.0, 0.0]]),
        label="zeros-along-dim",
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_prod_with_one_zero_gives_the_product_of_the_others_to_it(device: torch.device) -> None:
    x = tracked([2.0, 0.0, 3.0], device)
    x.prod().backward()
    assert x.grad.tolist() == [0.0, 6.0, 0.0]


def test_prod_with_two_zeros_has_gradient_zero_everywhere(device: torch.device) -> None:
    # pytorch/pytorch#82644: whichever factor is left out, one zero stays.
    x = tracked([0.0, 5.0, 0.0, -2.0], device)
    x.prod().backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_prod_that_leaves_the_range_of_numbers_still_has_its_derivative(size: float, device: torch.device) -> None:
    x = tracked([size, size], device)  # dividing a factor out of the product, 0 or infinity, would not give the other
    x.prod().backward()
    assert x.grad.tolist() == [size, size]


def test_prod_along_an_axis_of_length_one_has_slope_one_at_zero(device: torch.device) -> None:
    # pytorch/pytorch#106789, tinygrad/tinygrad#17404: what is left of one factor is the product of nothing.
    x = tracked([[0.0], [3.0]], device)
    x.prod(1).sum().backward()
    assert x.grad.tolist() == [[1.0], [1.0]]


def test_second_derivative_of_prod_with_two_zeros_is_the_product_of_the_rest(device: torch.device) -> None:
    x = tracked([2.0, 0.0, 3.0, 0.0], device)
    (first,) = torch.autograd.grad(x.prod(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[1], x)
    assert second.tolist() == [0.0, 0.0, 0.0, 6.0]


def test_third_derivative_of_prod_at_the_zero_vector(device: torch.device) -> None:
    x = tracked([0.0, 0.0, 0.0], device)
    (first,) = torch.autograd.grad(x.prod(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[0], x, create_graph=True)
    (third,) = torch.autograd.grad(second[1], x)
    assert third.tolist() == [0.0, 0.0, 1.0]


def test_sum_with_a_complex_dtype_gives_a_real_gradient(device: torch.device) -> None:
    # pytorch/pytorch#192719
    x = tracked([2.0, 3.0], device)
    x.sum(dtype=torch.complex128).real.backward()
    assert x.grad.tolist() == [1.0, 1.0] and x.grad.dtype == torch.float64


def test_sum_and_mean_keep_no_tensor(device: torch.device) -> None:
    x = tracked([1.0, 2.0], device)
    for result in (x.sum(), x.mean(0), x.sum_to_size(1)):
        assert not any(isinstance(kept, torch.Tensor) for kept in result.grad_fn.saved)


def test_nan_row_of_nansum_gets_no_gradient(device: torch.device) -> None:
    x = tracked([NAN, 1.0], device)
    x.nansum().backward()
    assert x.grad.tolist() == [0.0, 1.0]


def test_dimension_may_be_a_numpy_integer(device: torch.device) -> None:
    numpy = pytest.importorskip("numpy")
    x = tracked([[1.0, 1.0], [1.0, 1.0]], device)
    x.sum(numpy.int64(1)).backward(torch.tensor([1.0, 2.0], dtype=torch.float64, device=device))
    assert x.grad.tolist() == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize("reduce", [torch.sum, torch.prod, torch.mean, torch.nansum], ids=lambda f: f.__name__)
def test_reduction_of_nothing_has_an_empty_gradient(reduce, device: torch.device) -> None:
    x = tracked([], device)
    reduce(x).backward()
    assert x.grad.shape == (0,)
