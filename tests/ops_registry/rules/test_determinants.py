"""Rules of ``ops_registry/rules/determinants.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, Make, case, plain, rand, run_case, values

import tracer
from ops_registry.errors import UnsupportedCallError
from ops_registry.rules.determinants import cofactors, moved_cofactors, products_without_two

C = torch.complex128


def of_rank(n: int, rank: int, dtype: torch.dtype = torch.float64) -> Make:
    """An n × n matrix of this rank."""
    return lambda device: rand(n, rank, dtype=dtype)(device) @ rand(rank, n, dtype=dtype, seed=1)(device)


def regular(n: int, dtype: torch.dtype = torch.float64) -> Make:
    """A well-conditioned n × n matrix."""
    return lambda device: rand(n, n, dtype=dtype, low=-0.5, high=0.5)(device) + torch.eye(n, device=device)


CASES = [
    case("det", torch.det, rand(3, 3)),
    case("det", torch.det, rand(2, 2, 3, 3), label="batch"),
    case("det", torch.det, rand(1, 1), label="1x1"),
    case("det", torch.det, rand(0, 3, 3), label="no-batch"),
    case("det", torch.det, rand(2, 0, 0), label="0x0"),
    case("det", lambda a: a.mT.det(), rand(3, 3, dtype=C), label="complex-transposed"),
    case("linalg_det", torch.linalg.det, rand(2, 3, 3)),
    case("linalg_det", lambda a: torch.linalg.det(a.mT), rand(2, 3, 3), label="transposed"),
    case("linalg_det", lambda a: torch.linalg.det(a[::2, ::2]), rand(6, 6), label="strided"),
    case("linalg_det", lambda a: torch.linalg.det(A=a), rand(4, 4, dtype=C), label="complex-keyword"),
    case(
        "linalg_det",
        torch.linalg.det,
        lambda device: torch.eye(3, device=device).double(),
        label="equal-singular-values",
    ),
    # torch takes the derivative of a singular matrix at a neighbour, and of one of rank n - 1 for zero.
    *(
        case("linalg_det", torch.linalg.det, of_rank(n, rank), torch_agrees=False, label=f"{n}x{n}-rank-{rank}")
        for n, rank in ((2, 1), (3, 2), (3, 1), (5, 4), (5, 2), (2, 0), (1, 0))
    ),
    case("linalg_det", torch.linalg.det, of_rank(3, 2, C), torch_agrees=False, label="complex-rank-2"),
    case("cofactors", cofactors, rand(3, 3), torch_agrees=False),
    case("cofactors", cofactors, rand(2, 4, 4, dtype=C), torch_agrees=False, label="complex"),
    # The derivative after this one, the third of det, is refused at singular matrices.
    case("cofactors", cofactors, of_rank(4, 3), torch_agrees=False, second=False, label="rank-n-1"),
    case("cofactors", cofactors, of_rank(4, 2), torch_agrees=False, second=False, label="rank-n-2"),
    case("moved_cofactors", moved_cofactors, regular(3), rand(3, 3, seed=1), torch_agrees=False, second="differences"),
    case(
        "moved_cofactors",
        moved_cofactors,
        regular(4, C),
        rand(4, 4, dtype=C, seed=1),
        torch_agrees=False,
        second="differences",
        label="complex",
    ),
    case("moved_cofactors", lambda d: moved_cofactors(torch.zeros(3, 3).double(), d), rand(3, 3), label="at-zero"),
    case("slogdet", lambda a: torch.slogdet(a)[1], rand(2, 3, 3)),
    case("slogdet", lambda a: torch.slogdet(a), rand(3, 3, dtype=C), label="complex"),
    case("linalg_slogdet", lambda a: torch.linalg.slogdet(a)[1], rand(2, 3, 3)),
    case("linalg_slogdet", lambda a: torch.linalg.slogdet(a), rand(2, 3, 3, dtype=C), label="complex"),
    case("linalg_slogdet", lambda a: torch.linalg.slogdet(a)[0], rand(3, 3, dtype=C), label="complex-sign"),
    case("linalg_slogdet", lambda a: torch.linalg.slogdet(A=a).logabsdet, rand(0, 0), label="0x0-keyword"),
    case("linalg_slogdet", lambda a: torch.linalg.slogdet(a.mT)[1], rand(2, 3, 3), label="transposed"),
    case("linalg_slogdet", lambda a: torch.linalg.slogdet(a[::2, ::2])[1], rand(6, 6), label="strided"),
    case("logdet", lambda a: torch.logdet(a @ a.mT), rand(2, 3, 3)),
    case("logdet", lambda a: a.logdet(), rand(3, 3, dtype=C), label="complex"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def gradient_of_det(data: list[list[float]]) -> list[list[float]]:
    x = tracer.track(torch.tensor(data, dtype=torch.float64), True)
    torch.linalg.det(x).backward()
    return plain(x.grad)


def test_matrix_of_rank_n_minus_1_gets_its_cofactors() -> None:
    # pytorch/pytorch#80761, pytorch/pytorch#104675
    torch.testing.assert_close(
        gradient_of_det([[1.0, 2.0], [2.0, 4.0]]), torch.tensor([[4.0, -2.0], [-2.0, 1.0]], dtype=torch.float64)
    )


def test_diagonal_matrix_with_a_zero_gets_its_cofactors() -> None:
    # pytorch/pytorch#104675
    torch.testing.assert_close(
        gradient_of_det([[0.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    )


def test_zero_matrix_has_no_cofactors() -> None:
    torch.testing.assert_close(gradient_of_det([[0.0] * 3] * 3), torch.zeros(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("data", [[[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [2.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]])
def test_second_derivative_of_a_2x2_determinant_is_the_same_everywhere(data: list[list[float]]) -> None:
    x = tracer.track(torch.tensor(data, dtype=torch.float64), True)
    (grad,) = torch.autograd.grad(torch.linalg.det(x), x, create_graph=True)
    # ad - bc: the second derivatives by a and d, and by b and c, are 1 and -1.
    second = [plain(torch.autograd.grad(entry, x, retain_graph=True)[0]).flatten() for entry in grad.flatten()]
    expected = torch.tensor([[0, 0, 0, 1], [0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(torch.stack(second), expected)


def test_third_derivative_of_a_determinant() -> None:
    x = tracer.track(rand(3, 3)(torch.device("cpu")), True)
    (first,) = torch.autograd.grad(torch.linalg.det(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first[1, 1], x, create_graph=True)
    (third,) = torch.autograd.grad(second[2, 2], x)
    assert plain(third)[0, 0].item() == pytest.approx(1.0)  # the determinant has the term x_00 x_11 x_22


def test_third_derivative_of_a_singular_matrix_is_refused() -> None:
    x = tracer.track(torch.zeros(3, 3), True)
    (first,) = torch.autograd.grad(torch.linalg.det(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first[1, 1], x, create_graph=True)
    with pytest.raises(UnsupportedCallError, match="condition number"):
        torch.autograd.grad(second[2, 2], x)


def test_determinant_below_zero_has_no_logarithm_and_no_gradient() -> None:
    x = tracer.track(torch.diag(torch.tensor([-1.0, 2.0])), True)
    y = torch.logdet(x)
    y.backward()
    assert torch.isnan(plain(y))
    assert plain(x.grad).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_logarithm_of_a_determinant_of_zero_has_no_finite_gradient() -> None:
    x = tracer.track(torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=torch.float64), True)
    y = torch.linalg.slogdet(x).logabsdet
    y.backward()
    assert y.item() == -float("inf") and not plain(x.grad).isfinite().any()


def test_products_of_all_but_two_values_hold_with_zeros_among_them() -> None:
    products = products_without_two(torch.tensor([0.0, 2.0, 3.0, 5.0]))
    assert products.tolist() == [
        [0.0, 15.0, 10.0, 6.0],
        [15.0, 0.0, 0.0, 0.0],
        [10.0, 0.0, 0.0, 0.0],
        [6.0, 0.0, 0.0, 0.0],
    ]


def test_float32_determinant_has_a_float32_gradient() -> None:
    x = tracer.track(values([[1.0, 2.0], [2.0, 4.0]], torch.float32)(torch.device("cpu")), True)
    torch.det(x).backward()
    torch.testing.assert_close(plain(x.grad), torch.tensor([[4.0, -2.0], [-2.0, 1.0]]))
