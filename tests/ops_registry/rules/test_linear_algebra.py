"""Rules of ``ops_registry/rules/linear_algebra.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import Case, Make, case, plain, rand, run_case
from support.layouts import transposed

import tracer

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.(triangular_solve|cholesky|lu_solve) is deprecated"),
]

C = torch.complex128


def regular(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Make:
    """Well-conditioned square matrices: a random one of small entries added to the identity."""

    def make(device: torch.device) -> torch.Tensor:
        return rand(*shape, dtype=dtype, low=-0.4, high=0.4, seed=seed)(device) + torch.eye(shape[-1], device=device)

    return make


def factor(a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """A triangular matrix with a positive diagonal."""
    lower = a.tril(-1) + torch.diag_embed(1 + a.diagonal(dim1=-2, dim2=-1).abs()).to(a.dtype)
    return lower.mH if upper else lower


def solutions(op: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``op`` with options, reduced to its first result."""

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        result = op(*inputs, **options)
        return result if isinstance(result, torch.Tensor) else result[0]

    return call


def systems(name: str, op: Callable[..., Any]) -> list[Case]:
    """The cases of ``solve`` and ``solve_ex``."""
    return [
        case(name, solutions(op), regular(3, 3), rand(3, 2)),
        case(name, solutions(op), regular(3, 3), rand(3), label="vector"),
        case(name, solutions(op), regular(2, 3, 3), rand(2, 3), label="vector-batch"),
        case(name, solutions(op), regular(2, 3, 3), rand(3), label="vector-broadcast"),
        case(name, solutions(op), regular(3, 3), rand(2, 4, 3, 2), label="matrix-broadcast"),
        case(name, solutions(op), regular(2, 1, 3, 3), rand(4, 3, 2), label="both-broadcast"),
        case(name, solutions(op, left=False), regular(3, 3), rand(2, 3), label="right"),
        case(
            name, solutions(op, left=False), regular(2, 3, 3), rand(2, 2, 3, dtype=torch.float64), label="right-batch"
        ),
        case(name, solutions(op), regular(3, 3, dtype=C), rand(3, 2, dtype=C), label="complex"),
        case(name, solutions(op, left=False), regular(3, 3, dtype=C), rand(2, 3, dtype=C), label="complex-right"),
        case(name, solutions(op), regular(0, 3, 3), rand(0, 3, 2), label="empty"),
        case(name, solutions(op), transposed(regular(3, 3)), transposed(rand(3, 2)), label="transposed"),
    ]


def triangular(upper: bool, left: bool, unitriangular: bool) -> Callable[..., Any]:
    return lambda a, b: torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular)


FLAGS = [(u, l, t) for u in (False, True) for l in (False, True) for t in (False, True)]  # noqa: E741

CASES = [
    case("trace", lambda x: x.trace().square(), rand(3, 3)),
    case("trace", lambda x: torch.trace(x).square(), rand(2, 4, dtype=C), label="wide"),
    case("trace", lambda x: x.trace(), rand(0, 3), label="empty"),
    case("inverse", torch.inverse, regular(2, 3, 3)),
    case("inverse", lambda a: a.inverse(), regular(3, 3, dtype=C), label="complex-method"),
    case("linalg_inv", torch.linalg.inv, regular(2, 3, 3)),
    case("linalg_inv", lambda a: torch.linalg.inv(A=a), regular(3, 3, dtype=C), label="complex-keyword"),
    case("linalg_inv", torch.linalg.inv, regular(0, 3, 3), label="empty"),
    case("linalg_inv_ex", lambda a: torch.linalg.inv_ex(a)[0], regular(2, 3, 3)),
    case("linalg_inv_ex", lambda a: torch.linalg.inv_ex(a).inverse, regular(3, 3, dtype=C), label="complex"),
    case("linalg_pinv", torch.linalg.pinv, rand(3, 3)),
    case("linalg_pinv", torch.linalg.pinv, rand(2, 5, 3), label="tall"),
    case("linalg_pinv", torch.linalg.pinv, rand(2, 3, 5), label="wide"),
    case("linalg_pinv", torch.linalg.pinv, rand(3, 4, dtype=C), label="complex"),
    case("linalg_pinv", lambda a: torch.linalg.pinv(a, rtol=1e-6), rand(3, 4), label="rtol"),
    case("linalg_pinv", lambda a: torch.linalg.pinv(a + a.mH, hermitian=True), rand(3, 3, dtype=C), label="hermitian"),
    case("linalg_pinv", lambda a, b: torch.linalg.pinv(a @ b), rand(4, 2), rand(2, 3), label="of-lower-rank"),
    case("pinverse", torch.pinverse, rand(4, 3)),
    case("pinverse", lambda a: a.pinverse(), rand(3, 4, dtype=C), label="complex"),
    case("least_squares", lambda a, b: torch.linalg.lstsq(a, b)[:2], rand(5, 3), rand(5, 2)),
    case("least_squares", lambda a, b: torch.linalg.lstsq(a, b)[0], rand(2, 5, 3), rand(2, 5), label="vector"),
    case("linalg_lstsq", lambda a, b: torch.linalg.lstsq(a, b)[0], rand(3, 5), rand(3, 2), label="wide"),
    case(
        "least_squares",
        lambda a, b: torch.linalg.lstsq(a, b)[:2],
        rand(5, 3, dtype=C),
        rand(5, 2, dtype=C),
        label="complex",
    ),
    case(
        "least_squares",
        lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd")[1],
        rand(5, 3),
        rand(5, 2),
        label="residuals",
    ),
    *systems("linalg_solve", torch.linalg.solve),
    *systems("linalg_solve_ex", torch.linalg.solve_ex),
    *(
        case("linalg_solve_triangular", triangular(*f), regular(3, 3), rand(2, 3, 3), label=f"upper-left-unit-{f}")
        for f in FLAGS
    ),
    case(
        "linalg_solve_triangular",
        triangular(True, True, False),
        regular(3, 3, dtype=C),
        rand(3, 2, dtype=C),
        label="complex",
    ),
    case(
        "linalg_solve_triangular",
        triangular(False, False, True),
        regular(3, 3, dtype=C),
        rand(2, 3, dtype=C),
        label="complex-right",
    ),
    case("linalg_solve_triangular", triangular(True, True, False), regular(0, 3, 3), rand(0, 3, 2), label="empty"),
    *(
        case(
            "triangular_solve",
            lambda b, a, f=f: torch.triangular_solve(b, a, *f),
            rand(2, 3, 2, dtype=C),
            regular(2, 3, 3, dtype=C),
            label=f"upper-transpose-unit-{f}",
        )
        for f in FLAGS
    ),
    case("triangular_solve", lambda b, a: torch.triangular_solve(b, a)[0], rand(3, 2), regular(3, 3), label="solution"),
    case(
        "triangular_solve",
        lambda b, a: torch.triangular_solve(b, a)[1],
        rand(3, 2),
        regular(3, 3),
        label="copy",
        needs=((1,), (0, 1)),
    ),
    case("cholesky_inverse", lambda a: torch.cholesky_inverse(factor(a)), rand(2, 3, 3)),
    case("cholesky_inverse", lambda a: torch.cholesky_inverse(factor(a, True), upper=True), rand(3, 3), label="upper"),
    case("cholesky_inverse", lambda a: torch.cholesky_inverse(factor(a)), rand(3, 3, dtype=C), label="complex"),
    case("cholesky_solve", lambda b, a: torch.cholesky_solve(b, factor(a)), rand(2, 3, 2), rand(2, 3, 3)),
    case(
        "cholesky_solve",
        lambda b, a: torch.cholesky_solve(b, factor(a, True), True),
        rand(3, 2),
        rand(3, 3),
        label="upper",
    ),
    case(
        "cholesky_solve",
        lambda b, a: torch.cholesky_solve(b, factor(a)),
        rand(3, 2, dtype=C),
        rand(3, 3, dtype=C),
        label="complex",
    ),
    case(
        "cholesky_solve", lambda b, a: b.cholesky_solve(factor(a)), rand(4, 3, 2), rand(3, 3), label="broadcast-method"
    ),
    *(
        case(
            "linalg_lu_solve",
            lambda a, b, f=f: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, left=f[0], adjoint=f[1]),
            regular(3, 3, dtype=dtype),
            rand(2, 3, 3, dtype=dtype),
            label=f"{dtype}-left-{f[0]}-adjoint-{f[1]}",
        )
        for f in ((True, False), (True, True), (False, False), (False, True))
        for dtype in (torch.float64, C)
    ),
    case("lu_solve", lambda a, b: torch.lu_solve(b, *torch.linalg.lu_factor(a)), regular(2, 3, 3), rand(2, 3, 2)),
    case(
        "linalg_tensorinv",
        lambda a: torch.linalg.tensorinv(a + torch.eye(6).reshape(6, 2, 3), ind=1),
        rand(6, 2, 3, low=-0.3, high=0.3),
    ),
    case(
        "linalg_tensorinv",
        lambda a: torch.linalg.tensorinv(a + torch.eye(6).reshape(2, 3, 6), ind=2),
        rand(2, 3, 6, low=-0.3, high=0.3),
        label="ind-2",
    ),
    case("linalg_tensorsolve", torch.linalg.tensorsolve, rand(2, 3, 6), rand(2, 3)),
    case(
        "linalg_tensorsolve",
        lambda a, b: torch.linalg.tensorsolve(a, b, dims=(0, 2)),
        rand(3, 6, 2),
        rand(6),
        label="dims",
    ),
    *(case("linalg_cond", lambda a, p=p: torch.linalg.cond(a, p), rand(3, 3), label=str(p)) for p in (None, 2, -2)),
    # With these torch overwrites the inverse, which its own backward needs.
    *(
        case("linalg_cond", lambda a, p=p: torch.linalg.cond(a, p), rand(2, 3, 3), torch_agrees=False, label=str(p))
        for p in (1, -1, "fro", "nuc", float("inf"))
    ),
    case("linalg_cond", torch.linalg.cond, rand(4, 3), label="tall"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_rank_of_a_matrix_carries_no_gradient(device: torch.device) -> None:
    assert torch.linalg.matrix_rank(tracer.track(torch.ones(2, 2, device=device), True)).item() == 1


@pytest.mark.parametrize("p", [None, 1, "fro"])
def test_singular_matrix_has_an_infinite_condition_number(p: Any, device: torch.device) -> None:
    x = tracer.track(torch.tensor([[1.0, 0.0], [0.0, 0.0]], device=device), True)
    assert torch.linalg.cond(x, p).item() == float("inf")


@pytest.mark.parametrize(
    ("p", "slopes"),
    [
        (1, [-1.0, 0.5]),  # b / a: the larger column over the smaller
        (float("inf"), [-1.0, 0.5]),
        (-1, [0.25, -0.125]),  # a / b
        (float("-inf"), [0.25, -0.125]),
        ("fro", [-0.75, 0.375]),  # a / b + b / a
    ],
    ids=str,
)
def test_condition_number_of_a_diagonal_matrix(p: Any, slopes: list[float], device: torch.device) -> None:
    x = tracer.track(torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64, device=device)), True)
    torch.linalg.cond(x, p).backward()
    torch.testing.assert_close(plain(x.grad).diagonal(), torch.tensor(slopes, dtype=torch.float64, device=device))


@pytest.mark.parametrize("inverse", [torch.linalg.inv, lambda a: torch.linalg.solve(a, a)], ids=["inv", "solve"])
def test_inverse_of_a_singular_matrix_is_refused_as_in_torch(inverse: Callable[..., Any], device: torch.device) -> None:
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        inverse(tracer.track(torch.ones(2, 2, device=device), True))


def test_pseudo_inverse_of_a_singular_matrix_has_the_derivative_of_constant_rank(device: torch.device) -> None:
    # Moving A = diag(1, 0) by E moves pinv(A) by -E_00 at 00, by the transpose of E beside the diagonal, by 0 at 11.
    x = tracer.track(torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64, device=device)), True)
    torch.linalg.pinv(x).backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, device=device))
    torch.testing.assert_close(
        plain(x.grad), torch.tensor([[-1.0, 3.0], [2.0, 0.0]], dtype=torch.float64, device=device)
    )


def test_singular_values_of_least_squares_do_not_require_grad(device: torch.device) -> None:
    x = tracer.track(rand(4, 2)(device), True)
    results = torch.linalg.lstsq(x, rand(4, 1)(device), driver="gelsd")
    assert [r.requires_grad for r in results] == [True, True, False, False]


def test_results_of_least_squares_keep_their_names(device: torch.device) -> None:
    x = tracer.track(rand(4, 2)(device), True)
    results = torch.linalg.lstsq(x, rand(4, 1)(device))
    torch.testing.assert_close(plain(results.solution), plain(torch.linalg.pinv(x)) @ rand(4, 1)(device))


def test_triangular_solver_gives_no_gradient_to_what_it_does_not_read(device: torch.device) -> None:
    a = tracer.track(regular(3, 3)(device), True)
    torch.linalg.solve_triangular(a, rand(3, 2)(device), upper=True).sum().backward()
    assert plain(a.grad).tril(-1).count_nonzero() == 0


def test_system_with_a_constant_matrix_gives_the_right_side_its_gradient_alone(device: torch.device) -> None:
    a, b = regular(3, 3)(device), tracer.track(rand(3, 2)(device), True)
    torch.linalg.solve(a, b).sum().backward()
    torch.testing.assert_close(plain(b.grad), torch.linalg.solve(a.mT, torch.ones(3, 2, dtype=a.dtype, device=device)))


def test_tensorsolve_of_nothing_has_empty_gradients(device: torch.device) -> None:
    a, b = tracer.track(rand(0, 1, 0)(device), True), tracer.track(rand(1, 0, seed=1)(device).reshape(0, 1), True)
    out = torch.linalg.tensorsolve(a, b)
    grads = torch.autograd.grad(out.sum(), [a, b], create_graph=True)
    assert [g.shape for g in grads] == [(0, 1, 0), (0, 1)]


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (1, 0)])
def test_the_condition_number_of_an_empty_matrix_is_a_constant_zero(shape: tuple[int, ...]) -> None:
    found = torch.linalg.cond(tracer.tensor(torch.zeros(shape), requires_grad=True))
    assert not found.requires_grad and torch.equal(found.data, torch.zeros(shape[:-2]))
