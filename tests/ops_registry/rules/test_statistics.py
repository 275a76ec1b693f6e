"""Rules of ``ops_registry/rules/statistics.py``."""

from __future__ import annotations

import pytest
import torch
from support.analytic import assert_values, first
from support.checking import Case, case, plain, rand, run_case, values
from support.leaves import tracked

import tracer
from ops_registry.errors import UnsupportedCallError

COMPLEX = torch.complex128
NAN = float("nan")

#: Every way to call var, std and their siblings, with the overload that it means.
CALLS = {
    "all": lambda op: lambda x: op(x),
    "unbiased": lambda op: lambda x: op(x, False),
    "unbiased-keyword": lambda op: lambda x: op(x, unbiased=True),
    "dim": lambda op: lambda x: op(x, 1),
    "dim-unbiased": lambda op: lambda x: op(x, 0, False),
    "dim-unbiased-keepdim": lambda op: lambda x: op(x, (0, 1), False, True),
    "none-unbiased-keepdim": lambda op: lambda x: op(x, dim=None, unbiased=False, keepdim=True),
    "keepdim": lambda op: lambda x: op(x, -1, keepdim=True),
    "all-keepdim": lambda op: lambda x: op(x, keepdim=True),
    "correction": lambda op: lambda x: op(x, correction=0.5),
    "dim-correction": lambda op: lambda x: op(x, (0, -1), correction=2, keepdim=True),
    "numpy-names": lambda op: lambda x: op(x, axis=1, unbiased=False, keepdims=True),
    "transposed": lambda op: lambda x: op(x.t(), 0),
}
OPS = [torch.var, torch.std, torch.var_mean, torch.std_mean]

TIES = values([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])

CASES = [
    *(
        case(f"{op.__name__}.correction", call(op), rand(3, 4), label=name)
        for op in OPS
        for name, call in CALLS.items()
    ),
    *(case(f"{op.__name__}.correction", op, rand(3, 4, dtype=COMPLEX), label="complex") for op in OPS),
    *(
        case(f"{op.__name__}.correction", lambda x, op=op: op(x, (1, 3)), rand(2, 1, 2, 3, 2), label="rank-5")
        for op in OPS
    ),
    *(case(f"{op.__name__}.correction", lambda x, op=op: op(x, 0), rand(2, 0), label="empty") for op in OPS),
    *(
        case(
            f"{op.__name__}.correction",
            lambda x, op=op: op(x, correction=0),
            rand(),
            label="0-d",
            differences=False,
            second="differences",
        )
        for op in OPS
    ),
    # torch reduces everything here but takes one element a group in its backward: its gradient is infinite.
    *(
        case(f"{op.__name__}.correction", lambda x, op=op: op(x, []), rand(3, 4), label="no-dims", torch_agrees=False)
        for op in OPS
    ),
    case("var.correction", lambda x: torch.ops.aten.var.correction(x, [1], correction=1), rand(3, 4), label="overload"),
    case("var.dim", lambda x: torch.ops.aten.var.dim(x, [1], False), rand(3, 4), label="overload"),
    case("var", lambda x: torch.ops.aten.var.default(x, False), rand(3, 4), label="overload"),
    case("var.correction", torch.Tensor.var, rand(3, 4), label="method"),
    case("var_mean.correction", lambda x: torch.var_mean(x, 1)[0], rand(3, 4), label="variance-alone"),
    case("var_mean.correction", lambda x: torch.var_mean(x, 1)[1], rand(3, 4), label="mean-alone"),
    case("std_mean.correction", lambda x: torch.std_mean(x, 1)[0], rand(3, 4), label="deviation-alone"),
    case("std_mean.correction", lambda x: torch.std_mean(x, 1)[1], rand(3, 4), label="mean-alone"),
    case("mode", torch.mode, TIES, differences=False),
    case("mode", lambda x: x.mode(0, keepdim=True), TIES, label="dim-keepdim", differences=False),
    case("mode", torch.mode, rand(), label="0-d"),
    case("median", torch.median, rand(3, 4)),
    case("median", torch.median, rand(), label="0-d"),
    case("median", torch.median, TIES, label="ties", differences=False),
    case("median", torch.median, values([1.0, NAN, 2.0, NAN]), label="nan", differences=False),
    case("median.dim", lambda x: x.median(1), rand(3, 4)),
    case("median.dim", lambda x: torch.median(x, dim=0, keepdim=True), rand(3, 4), label="keepdim"),
    case("median.dim", lambda x: x.median(axis=-1), rand(3, 4), label="numpy-names"),
    case("median.dim", lambda x: x.median(0), rand(), label="0-d"),
    case("median.dim", lambda x: x.median(3), rand(2, 1, 2, 3, 2), label="rank-5"),
    case("nanmedian", torch.nanmedian, values([1.0, NAN, 2.0, 3.0]), differences=False),
    case("nanmedian", torch.nanmedian, values([NAN, NAN]), label="all-nan", differences=False),
    case("nanmedian.dim", lambda x: x.nanmedian(1), rand(3, 4)),
    case(
        "nanmedian.dim",
        lambda x: x.nanmedian(1, True),
        values([[1.0, NAN, 2.0], [NAN, NAN, NAN]]),
        label="nan",
        differences=False,
    ),
    case("quantile", lambda x: torch.quantile(x, 0.4), rand(3, 4)),
    case("quantile", lambda x, q: torch.quantile(x, q, 1), rand(3, 4), values([0.1, 0.55, 0.9]), label="several"),
    case("quantile", lambda x, q: x.quantile(q, dim=0, keepdim=True), rand(3, 4), values([0.1, 0.55]), label="keepdim"),
    case("quantile", lambda x: x.quantile(0.3, -1, True), rand(2, 3, 4), label="negative-dim-keepdim"),
    case("quantile", lambda x: x.quantile(0.3, keepdim=True), rand(2, 3), label="all-keepdim"),
    case("quantile", lambda x: x.quantile(0.3, 0, keepdim=True), rand(), label="0-d"),
    case("quantile", lambda x: x.quantile(0.3, 3), rand(2, 1, 2, 3, 2), label="rank-5"),
    *(
        case("quantile", lambda x, i=i: x.quantile(0.4, 1, interpolation=i), rand(3, 4), label=i)
        for i in ("linear", "lower", "higher", "nearest", "midpoint")
    ),
    case(
        "quantile",
        lambda x: x.quantile(0.4, 1),
        values([[1.0, NAN, 2.0], [3.0, 1.0, 2.0]]),
        label="nan",
        differences=False,
    ),
    case(
        "nanquantile",
        lambda x: x.nanquantile(0.4, 1),
        values([[1.0, NAN, 2.0], [3.0, 1.0, 2.0]]),
        label="nan",
        differences=False,
    ),
    case(
        "nanquantile",
        lambda x, q: torch.nanquantile(x, q),
        values([1.0, NAN, 2.0, 5.0]),
        values([0.2, 0.6]),
        differences=False,
    ),
    case("nanquantile", lambda x: x.nanquantile(0.4, 0), values([[NAN], [NAN]]), label="all-nan", differences=False),
    case("cov", torch.cov, rand(3, 4)),
    case("cov", torch.cov, rand(4), label="one-variable"),
    case("cov", torch.cov, rand(3, 4, dtype=COMPLEX), label="complex"),
    case("cov", lambda x: x.cov(correction=0), rand(3, 4), label="correction"),
    case("cov", lambda x, a: x.cov(aweights=a), rand(3, 4), rand(4, low=0.5), label="aweights"),
    case("cov", lambda x, a: x.cov(correction=0, aweights=a), rand(3, 4), rand(4, low=0.5), label="aweights-biased"),
    case("cov", lambda x: x.cov(fweights=torch.tensor([1, 2, 1, 3], device=x.device)), rand(3, 4), label="fweights"),
    case(
        "cov",
        lambda x, a: x.cov(fweights=torch.tensor([1, 2, 1, 3], device=x.device), aweights=a),
        rand(3, 4),
        rand(4, low=0.5),
        label="both-weights",
    ),
    case("corrcoef", torch.corrcoef, rand(3, 4)),
    case("corrcoef", torch.corrcoef, rand(3, 4, dtype=COMPLEX), label="complex"),
    case("corrcoef", torch.corrcoef, rand(4), label="one-variable"),
    # torch has no derivative of bincount
    case(
        "bincount",
        lambda w: torch.bincount(torch.tensor([0, 2, 2], device=w.device), w, minlength=5),
        rand(3),
        second="differences",
        torch_agrees=False,
    ),
]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_median_of_all_shares_ties(device: torch.device) -> None:
    x = tracked([2.0, 1.0, 2.0, 3.0], device)
    x.median().backward()
    assert x.grad.tolist() == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("deviation", [torch.std, lambda x: torch.std_mean(x)[0]])
def test_standard_deviation_of_equal_elements_has_gradient_zero(deviation, device: torch.device) -> None:
    # pytorch/pytorch#4320
    x = tracked([1.0, 1.0, 1.0], device)
    deviation(x).backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_row_of_equal_elements_does_not_disturb_the_others(device: torch.device) -> None:
    x = tracked([[1.0, 1.0], [0.0, 2.0]], device)
    x.std(1, correction=0).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [-0.5, 0.5]]


def test_second_derivative_of_the_deviation_of_equal_elements_is_finite(device: torch.device) -> None:
    x = tracked([1.0, 1.0, 1.0], device)
    (first,) = torch.autograd.grad(x.std(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [0.0, 0.0, 0.0]


def test_gradient_of_variance_is_twice_the_distance_from_the_mean(device: torch.device) -> None:
    x = tracked([1.0, 2.0, 6.0], device)
    x.var().backward()
    assert x.grad.tolist() == [-2.0, -1.0, 3.0]


@pytest.mark.parametrize(("spread", "slope"), [(torch.var, 2.0), (torch.std, 0.5**0.5)], ids=["var", "std"])
def test_an_empty_list_of_dimensions_means_all_of_them(spread, slope: float, device: torch.device) -> None:
    x = tracked([[1.0, 3.0]], device)
    spread(x, dim=[]).backward()
    assert x.grad.flatten().tolist() == pytest.approx([-slope, slope])


@pytest.mark.filterwarnings("ignore:var")
def test_variance_without_degrees_of_freedom_has_an_infinite_gradient(device: torch.device) -> None:
    x = tracked([1.0, 3.0], device)
    x.var(correction=2).backward()
    assert x.grad.isinf().all()


def test_variance_keeps_only_its_input(device: torch.device) -> None:
    x = tracked([1.0, 2.0, 6.0], device)
    kept = [k for k in x.var().grad_fn.saved if isinstance(k, torch.Tensor)]
    assert [k.data_ptr() for k in kept] == [x.data_ptr()]


@pytest.mark.parametrize("q", [1.5, -0.1])
def test_quantile_refuses_q_outside_the_unit_interval(q: float, device: torch.device) -> None:
    with pytest.raises(UnsupportedCallError, match="between 0 and 1"):
        tracked([1.0, 2.0], device).quantile(q)


def test_quantile_refuses_an_unknown_interpolation(device: torch.device) -> None:
    with pytest.raises(UnsupportedCallError, match="cubic"):
        tracked([1.0, 2.0], device).quantile(0.5, interpolation="cubic")


def test_quantile_refuses_q_of_another_dtype(device: torch.device) -> None:
    with pytest.raises(UnsupportedCallError, match="dtype of the input"):
        tracked([1.0, 2.0], device).quantile(torch.tensor([0.5], dtype=torch.float32, device=device))


def test_quantile_refuses_an_empty_input(device: torch.device) -> None:
    with pytest.raises(UnsupportedCallError, match="no elements"):
        tracked([], device).quantile(0.5)


def test_covariance_without_degrees_of_freedom_warns_as_torch(device: torch.device) -> None:
    data = torch.tensor([[1.0], [2.0]], dtype=torch.float64, device=device)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        ours = tracer.track(data.clone(), True).cov()
    with pytest.warns(UserWarning, match="degrees of freedom"):
        theirs = data.cov()
    torch.testing.assert_close(plain(ours), theirs, equal_nan=True)


def test_each_weight_of_a_bincount_gets_the_gradient_of_its_bin(device: torch.device) -> None:
    scale = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=device)
    (weights,) = first(
        lambda w: torch.bincount(torch.tensor([0, 2, 2], device=device), w) * scale, [1.0, 1.0, 1.0], device=device
    )
    assert_values(weights, [1.0, 3.0, 3.0])


@pytest.mark.parametrize("length", [2, 5, 40])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, COMPLEX])
def test_covariance_is_that_of_torch_to_the_bit(dtype: torch.dtype, rows: int, length: int) -> None:
    data = torch.randn(rows, length, dtype=dtype)
    for weights in ({}, {"aweights": torch.rand(length)}, {"fweights": torch.randint(1, 5, (length,))}):
        assert torch.equal(plain(tracer.track(data.clone(), True).cov(**weights)), data.cov(**weights))


#: Weights of four observations that torch refuses.
REFUSED_WEIGHTS = {
    "two dimensions": {"fweights": torch.ones(4, 4, dtype=torch.long)},
    "counts that are no integers": {"fweights": torch.ones(4)},
    "too few counts": {"fweights": torch.tensor([1])},
    "too few weights": {"aweights": torch.ones(1)},
    "a negative count": {"fweights": torch.tensor([1, 2, 3, -1])},
    "a negative weight": {"aweights": torch.tensor([1.0, 2.0, 3.0, -1.0])},
}


@pytest.mark.parametrize("weights", REFUSED_WEIGHTS)
def test_covariance_refuses_the_weights_that_torch_refuses(weights: str, device: torch.device) -> None:
    said = []
    for data in (rand(3, 4)(device), tracer.track(rand(3, 4)(device), True)):
        with pytest.raises(RuntimeError) as raised:
            data.cov(**{name: w.to(device) for name, w in REFUSED_WEIGHTS[weights].items()})
        said.append(str(raised.value))
    assert said[1] == said[0]


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, COMPLEX])
def test_deviation_and_mean_are_those_of_torch_to_the_bit(dtype: torch.dtype, dim: int | None) -> None:
    data = torch.randn(50, 33, dtype=dtype)
    ours = torch.std_mean(tracer.track(data.clone(), True), dim)
    assert all(torch.equal(plain(a), b) for a, b in zip(ours, torch.std_mean(data, dim), strict=True))
