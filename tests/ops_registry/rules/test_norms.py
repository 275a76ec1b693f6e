"""Rules of ``ops_registry/rules/norms.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, cotangents, plain, rand, run_case, values
from support.leaves import tracked

import tracer

COMPLEX = torch.complex128
INF = float("inf")
NAN = float("nan")
norm = torch.linalg.vector_norm
aten = torch.ops.aten

CASES = [
    case("cosine_similarity", lambda a, b: torch.cosine_similarity(a, b, 0), rand(1, 2), rand(2, 1), label="broadcast"),
    case("cosine_similarity", lambda a, b: torch.cosine_similarity(a, b, 1), rand(3, 4), rand(3, 4, seed=1)),
    case("pairwise_distance", lambda a, b: torch.pairwise_distance(a, b), rand(3, 4), rand(3, 4, seed=1)),
    # torch's second derivative towards v is wrong where g wants none: differences decide.
    *[
        case(
            "_weight_norm",
            lambda v, g, dim=dim: torch._weight_norm(v, g, dim),
            rand(2, 3, 4),
            rand(*shape),
            second="differences",
            label=f"dim {dim}, lengths {shape}",
        )
        for dim, shape in ((0, (2, 1, 1)), (2, (4,)), (1, (1, 3, 1)), (-2, (1, 3, 1)), (-1, ()))
    ],
    case(
        "_weight_norm",
        lambda v, g: torch._weight_norm(v, g, 0),
        rand(4),
        rand(4, seed=1),
        second="differences",
        label="of numbers",
    ),
    case("norm_except_dim", lambda v: torch.norm_except_dim(v, 2, -2), rand(2, 3, 4)),
    *[
        case(
            "_weight_norm_interface",
            lambda v, g, dim=dim: torch.ops.aten._weight_norm_interface(v, g, dim)[0],
            rand(2, 3, 4),
            rand(*shape),
            second="differences",
            label=f"dim {dim}",
        )
        for dim, shape in ((0, (2, 1, 1)), (2, (1, 1, 4)))
    ],
    case("linalg_vector_norm", norm, rand(3, 4)),
    *(
        case("linalg_vector_norm", lambda x, p=p: norm(x, p, 1), rand(3, 4), label=f"order-{p}")
        for p in (0.5, 1, 1.5, 2, 3, 4.5, INF, -INF, -1, -2.5)
    ),
    *(
        case("linalg_vector_norm", lambda x, p=p: norm(x, p), rand(3, 4, dtype=COMPLEX), label=f"complex-order-{p}")
        for p in (0.5, 1, 2, 3, INF, -INF, -1)
    ),
    case("linalg_vector_norm", lambda x: norm(x, 0, 1), rand(3, 4), label="order-0"),
    case("linalg_vector_norm", lambda x: norm(x, 3, (0, -1), True), rand(3, 4, 2), label="dims-keepdim"),
    case("linalg_vector_norm", lambda x: norm(x, keepdim=True), rand(3, 4), label="all-keepdim"),
    case("linalg_vector_norm", lambda x: norm(x, INF, keepdim=True), rand(3, 4), label="all-keepdim-infinity"),
    case("linalg_vector_norm", lambda x: norm(x, ord=3, axis=0, keepdims=True), rand(3, 4), label="numpy-names"),
    case("linalg_vector_norm", lambda x: norm(x.t(), 2, 0), rand(3, 4), label="transposed"),
    case("linalg_vector_norm", norm, rand(), label="0-d"),
    case("linalg_vector_norm", norm, rand(0), label="empty"),
    case("linalg_vector_norm", lambda x: norm(x, 2, (1, 3)), rand(2, 1, 2, 3, 2), label="rank-5"),
    case(
        "linalg_vector_norm",
        lambda x: norm(x, 2, 1, dtype=torch.float64),
        rand(3, 4, dtype=torch.float32),
        label="dtype",
        differences=False,
        rtol=1e-6,
        atol=1e-6,  # one rounding of float32
    ),
    case(
        "linalg_vector_norm",
        lambda x: norm(x, INF, 1),
        values([[3.0, -3.0, 1.0], [2.0, 2.0, 2.0]]),
        label="ties",
        differences=False,
    ),
    case("linalg_vector_norm", lambda x: norm(x, INF), values([3.0, NAN, 1.0]), label="nan", differences=False),
    *(
        case(
            "linalg_vector_norm",
            lambda x, p=p: norm(x, p, 1),
            values([[0.0, 2.0], [3.0, -4.0]]),
            label=f"zero-element-{p}",
            **options,
        )
        for p, options in {
            0.5: {
                "differences": False,
                "second": False,
            },  # the slope at 0 is infinite: torch has nan in the second derivative
            1: {"differences": False},
            1.5: {"second": False},
            2: {},
            3: {},
            -1: {"differences": False, "second": False},  # the norm is 0 and has a corner there
        }.items()
    ),
    case("norm.Scalar", lambda x: aten.norm.Scalar(x, 3), rand(3, 4)),
    case("norm.ScalarOpt_dim", lambda x: aten.norm.ScalarOpt_dim(x, 3, [1]), rand(3, 4)),
    case("norm.ScalarOpt_dim", lambda x: aten.norm.ScalarOpt_dim(x, None, [1], True), rand(3, 4), label="keepdim"),
    case("norm.ScalarOpt_dtype", lambda x: aten.norm.ScalarOpt_dtype(x, None, dtype=torch.float64), rand(3, 4)),
    case(
        "norm.ScalarOpt_dim_dtype",
        lambda x: aten.norm.ScalarOpt_dim_dtype(x, 1, [0], False, dtype=torch.float64),
        rand(3, 4),
    ),
    case("linalg_vector_norm", lambda x: x.norm(), rand(3, 4), label="Tensor.norm"),
    case("linalg_vector_norm", lambda x: torch.norm(x, 1, (0, 1), True), rand(3, 4), label="torch.norm"),
    case("linalg_vector_norm", lambda x: torch.norm(x, "fro", dim=1), rand(3, 4), label="torch.norm-frobenius"),
    case("linalg_matrix_norm", torch.linalg.matrix_norm, rand(2, 3, 4)),
    *(
        case("linalg_matrix_norm", lambda x, p=p: torch.linalg.matrix_norm(x, p), rand(2, 3, 4), label=f"order-{p}")
        for p in (1, -1, INF, -INF)
    ),
    *(
        case(
            "linalg_matrix_norm",
            lambda x, p=p: torch.linalg.matrix_norm(x, p, (2, 0), True),
            rand(3, 2, 4),
            label=f"dims-{p}",
        )
        for p in ("fro", 1, -INF, "nuc", 2, -2)
    ),
    *(
        case("linalg_matrix_norm", lambda x, p=p: torch.linalg.matrix_norm(x, p), rand(3, 4), label=f"singular-{p}")
        for p in ("nuc", 2, -2)
    ),
    *(
        case("linalg_matrix_norm", lambda x, p=p: torch.linalg.matrix_norm(x, p), rand(2, 0, 3), label=f"empty-{p}")
        for p in (1, -1, "fro", "nuc")
    ),
    case("linalg_norm", torch.linalg.norm, rand(3, 4)),
    case("linalg_norm", lambda x: torch.linalg.norm(x, 3), rand(4), label="vector"),
    case("linalg_norm", lambda x: torch.linalg.norm(x, 1), rand(3, 4), label="matrix"),
    case("linalg_norm", lambda x: torch.linalg.norm(x, "fro", (0, 2), True), rand(3, 2, 4), label="frobenius"),
    case("linalg_norm", lambda x: torch.linalg.norm(x, 3, 1, dtype=torch.float64), rand(3, 4), label="dim"),
    case("frobenius_norm", lambda x: torch.frobenius_norm(x, (0, 1), True), rand(3, 4)),
    case("nuclear_norm", torch.nuclear_norm, rand(3, 4)),
    case("nuclear_norm.dim", lambda x: torch.nuclear_norm(x, (0, 2), keepdim=True), rand(3, 2, 4)),
    case("dist", torch.dist, rand(3, 1), rand(4, seed=1), label="broadcast"),
    case("dist", lambda a, b: a.dist(b, p=1), rand(3), rand(3, seed=1), label="order-1"),
    case(
        "dist",
        lambda a, b: torch.dist(a, b, INF),
        rand(3, dtype=COMPLEX),
        rand(3, seed=1, dtype=COMPLEX),
        label="complex",
    ),
    *(
        case("renorm", lambda x, p=p: torch.renorm(x, p, 0, 2.0), rand(4, 3), label=f"order-{p}")
        for p in (0.5, 1, 2, 3, INF)
    ),
    case("renorm", lambda x: x.renorm(2, -1, 1.5), rand(2, 3, 4), label="negative-dim"),
    case("renorm", lambda x: (x * 1).renorm_(2, 0, 1.5), rand(4, 3), label="in-place"),
    case("renorm", lambda x: x.renorm(2, 1, 1.5), rand(4, 3, dtype=COMPLEX), label="complex"),
    case("renorm", lambda x: x.renorm(2, 2, 1.5), rand(2, 1, 3, 2, 2), label="rank-5"),
    *(
        # torch has no second derivative of cdist: it is tested below against the same distance made of other ops.
        case(
            "cdist",
            lambda a, b, p=p: torch.cdist(a, b, p),
            rand(3, 2),
            rand(4, 2, seed=1),
            label=f"order-{p}",
            second="differences",
        )
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF)
    ),
    case(
        "cdist", torch.cdist, rand(2, 1, 3, 2), rand(2, 4, 2, seed=1), label="batches-broadcast", second="differences"
    ),
    case("cdist", torch.cdist, rand(30, 2), rand(26, 2, seed=1), label="many"),
    case(
        "_cdist_forward",
        lambda a, b: aten._cdist_forward(a, b, 3.0, None),
        rand(3, 2),
        rand(4, 2, seed=1),
        second="differences",
    ),
    case(
        "cdist",
        lambda a, b: torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist"),
        rand(3, 2),
        rand(4, 2, seed=1),
        label="by-matmul",
    ),
    case(
        "cdist",
        lambda a, b: torch.cdist(a.t(), b.t()),
        rand(2, 3),
        rand(2, 4, seed=1),
        label="transposed",
        second="differences",
    ),
    case("cdist", torch.cdist, rand(0, 2), rand(4, 2, seed=1), label="empty", second="differences"),
    case("cdist", torch.cdist, rand(3, 0), rand(4, 0, seed=1), label="no-coordinates", second="differences"),
    *(
        case("pdist", lambda x, p=p: torch.pdist(x, p), rand(4, 3), label=f"order-{p}", second="differences")
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF)
    ),
    case("pdist", lambda x: torch.nn.functional.pdist(x.t()), rand(3, 4), label="transposed", second="differences"),
    case("pdist", torch.pdist, rand(2, 3), label="one-pair", second="differences"),
    case("pdist", torch.pdist, rand(1, 3), label="one-point", second="differences"),
    case("pdist", torch.pdist, rand(3, 0), label="no-coordinates", second="differences"),
    case("_pdist_forward", lambda x: aten._pdist_forward(x, 1.5), rand(4, 3), second="differences"),
    *(
        case("norm_except_dim", lambda x, d=d: torch.norm_except_dim(x, 2, d), rand(3, 4, 2), label=f"dim-{d}")
        for d in (-1, 0, 1, 2)
    ),
]


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("order", [0.5, 1, 1.5, 2, 3, INF, -INF, -1])
def test_norm_of_the_zero_vector_has_gradient_zero(order: float, device: torch.device) -> None:
    x = tracked([0.0, 0.0], device)
    norm(x, order).backward()
    assert x.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("order", [0.5, 1, 1.5, 3, INF])
def test_second_derivative_of_the_norm_at_the_zero_vector_is_finite(order: float, device: torch.device) -> None:
    x = tracked([[0.0, 0.0], [3.0, 4.0]], device)
    (first,) = torch.autograd.grad(norm(x, order, 1).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.isfinite().all() and second[0].tolist() == [0.0, 0.0]


def test_second_derivative_of_the_euclidean_norm_at_the_zero_vector_does_not_exist(device: torch.device) -> None:
    # jax-ml/jax#21723
    x = tracked([[0.0, 0.0], [3.0, 4.0]], device)
    (first,) = torch.autograd.grad(norm(x, 2, 1).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first[0].tolist() == [0.0, 0.0]
    assert second[0].isnan().all() and second[1].isfinite().all()


def test_zero_row_does_not_disturb_the_others(device: torch.device) -> None:
    # pytorch/pytorch#2421, HIPS/autograd#151, jax-ml/jax#21723, JuliaDiff/ChainRules.jl#538
    x = tracked([[0.0, 0.0], [3.0, 4.0]], device)
    norm(x, dim=1).sum().backward()
    torch.testing.assert_close(
        plain(x.grad), torch.tensor([[0.0, 0.0], [0.6, 0.8]], dtype=torch.float64, device=device)
    )


def test_norm_of_order_one_half_gives_zero_to_a_zero_element(device: torch.device) -> None:
    # pytorch/pytorch#44452
    x = tracked([0.0, 4.0], device)
    norm(x, 0.5).backward()
    assert x.grad.tolist() == [0.0, 1.0]


def test_infinity_norm_shares_ties(device: torch.device) -> None:
    x = tracked([3.0, -3.0, 1.0], device)
    norm(x, INF).backward()
    assert x.grad.tolist() == [0.5, -0.5, 0.0]


def test_distance_of_a_point_to_itself_has_gradient_zero(device: torch.device) -> None:
    x = tracked([[1.0, 2.0], [4.0, 6.0]], device)
    torch.cdist(x, x).sum().backward()
    torch.testing.assert_close(
        plain(x.grad), torch.tensor([[-1.2, -1.6], [1.2, 1.6]], dtype=torch.float64, device=device)
    )


@pytest.mark.parametrize("order", [1.5, 2.0, 3.0, INF])
def test_second_derivative_of_cdist_equals_that_of_norms_of_differences(order: float, device: torch.device) -> None:
    a, b = rand(3, 2)(device), rand(2, 4, 2, seed=1)(device)

    def second(distance, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        out = distance(x, y)
        first = torch.autograd.grad(out, (x, y), cotangents([out]), create_graph=True)
        return [plain(g) for g in torch.autograd.grad(first, (x, y), cotangents([*first], 2), allow_unused=True)]

    ours = second(lambda x, y: torch.cdist(x, y, order), tracer.track(a.clone(), True), tracer.track(b.clone(), True))
    theirs = second(
        lambda x, y: norm(x.unsqueeze(-2) - y.unsqueeze(-3), order, -1),
        a.clone().requires_grad_(),
        b.clone().requires_grad_(),
    )
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.zeros_like(y) if x is None else x, y)


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_pdist_of_equal_points_and_equal_coordinates_has_torchs_gradient(order: float, device: torch.device) -> None:
    points = [[0.0, 1.0], [0.0, 1.0], [2.0, 1.0], [3.0, -5.0], [5.0, -3.0]]
    for create_graph in (False, True):
        x = tracked(points, device)
        native = torch.tensor(points, dtype=torch.float64, device=device, requires_grad=True)
        weights = cotangents([torch.pdist(native)])[0]
        (ours,) = torch.autograd.grad(torch.pdist(x, order), x, weights, create_graph=create_graph)
        (theirs,) = torch.autograd.grad(torch.pdist(native, order), native, weights)
        torch.testing.assert_close(plain(ours), theirs)


@pytest.mark.parametrize("order", [1.0, 1.5, 2.0, 3.0, INF])
def test_second_derivative_of_pdist_of_equal_points_is_finite(order: float, device: torch.device) -> None:
    x = tracked([[0.0, 1.0], [0.0, 1.0], [2.0, 1.5]], device)
    (first,) = torch.autograd.grad(torch.pdist(x, order).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert plain(second).isfinite().all()


def test_second_derivative_of_cdist_with_itself_is_finite(device: torch.device) -> None:
    x = tracked([[1.0, 2.0], [4.0, 6.0]], device)
    (first,) = torch.autograd.grad(torch.cdist(x, x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.isfinite().all()


def test_renorm_leaves_short_rows_alone(device: torch.device) -> None:
    x = tracked([[0.3, 0.4], [3.0, 4.0]], device)
    x.renorm(2, 0, 1.0)[0].sum().backward()
    assert x.grad[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("order", [INF, 2])
def test_norm_of_an_empty_matrix_is_zero_with_an_empty_gradient(order: float, device: torch.device) -> None:
    x = tracer.track(torch.ones(0, 3, device=device), True)
    result = torch.linalg.matrix_norm(x, order)
    result.backward()
    assert result.item() == 0 and x.grad.shape == (0, 3)


def test_matrix_norm_refuses_an_unknown_order(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="order 3 not supported"):
        torch.linalg.matrix_norm(tracked([[1.0, 2.0]], device), 3)


def test_norm_with_an_order_refuses_higher_rank_without_dimensions(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="rank 1 or 2"):
        torch.linalg.norm(tracked([[[1.0]]], device), 2)


def test_the_norm_of_a_zero_vector_is_differentiable_towards_the_cotangent(device: torch.device) -> None:
    x = tracked([0.0, 0.0], device)
    cotangent = tracked(2.0, device)
    (first,) = torch.autograd.grad(norm(x), x, cotangent, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), cotangent)
    assert second.item() == 0.0


def test_second_derivative_of_weight_norm_towards_the_direction_alone(device: torch.device) -> None:
    v, g = rand(3, 4)(device), rand(3, 1)(device)
    seconds = []
    for function in (lambda v: torch._weight_norm(v, g, 0), lambda v: v * (g / norm(v, 2, 1, True))):
        leaf = tracer.track(v.clone(), True)
        (first,) = torch.autograd.grad(function(leaf).square().sum(), leaf, create_graph=True)
        seconds.append(plain(torch.autograd.grad(first.square().sum(), leaf)[0]))
    torch.testing.assert_close(*seconds)
