"""Rules of ``ops_registry/rules/decompositions.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import Case, case, plain, rand, run_case

import tracer
from ops_registry.errors import UnsupportedCallError

pytestmark = pytest.mark.filterwarnings("ignore:torch.(lu|qr|svd|cholesky) is deprecated")

C = torch.complex128
SHAPES = [(3, 3), (4, 3), (3, 4), (2, 3, 3), (2, 1, 4, 2), (0, 3, 3), (1, 1)]


def hermitian(a: torch.Tensor) -> torch.Tensor:
    return a + a.mH


def positive(a: torch.Tensor) -> torch.Tensor:
    """A positive definite matrix."""
    return a @ a.mH + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def part(op: Callable[..., Any], *which: int, **options: Any) -> Callable[..., Any]:
    """Some results of ``op``."""
    return lambda a: [op(a, **options)[i] for i in which]


def free_of_phase(*results: torch.Tensor) -> list[torch.Tensor]:
    """The absolute values, which the phase of complex vectors leaves alone."""
    return [r.abs() for r in results]


def unpacked(*which: int) -> Callable[..., Any]:
    """Factors out of a packed LU decomposition."""
    return lambda a: [torch.lu_unpack(*torch.linalg.lu_factor(a))[i] for i in which]


CASES = [
    *(case("linalg_lu", part(torch.linalg.lu, 1, 2), rand(*s), label=str(s)) for s in SHAPES),
    *(case("linalg_lu", part(torch.linalg.lu, 1, 2), rand(*s, dtype=C), label=f"complex-{s}") for s in SHAPES[:3]),
    case("linalg_lu", part(torch.linalg.lu, 1), rand(4, 3), label="L-alone"),
    case("linalg_lu", part(torch.linalg.lu, 2), rand(3, 4), label="U-alone"),
    *(case("linalg_lu_factor", part(torch.linalg.lu_factor, 0), rand(*s), label=str(s)) for s in SHAPES),
    case("linalg_lu_factor", part(torch.linalg.lu_factor, 0), rand(3, 3, dtype=C), label="complex"),
    case("linalg_lu_factor_ex", part(torch.linalg.lu_factor_ex, 0), rand(2, 3, 3)),
    case("_lu_with_info", lambda a: torch.lu(a)[0], rand(2, 3, 3)),
    case("_lu_with_info", lambda a: a.lu()[0], rand(4, 3, dtype=C), label="complex-method"),
    *(case("lu_unpack", unpacked(1, 2), rand(*s), label=str(s)) for s in SHAPES),
    case("lu_unpack", unpacked(1, 2), rand(3, 3, dtype=C), label="complex"),
    case("lu_unpack", unpacked(1), rand(3, 4), label="L-alone"),
    case("lu_unpack", unpacked(2), rand(4, 3), label="U-alone"),
    *(case("linalg_qr", torch.linalg.qr, rand(*s), label=str(s)) for s in SHAPES),
    *(case("linalg_qr", torch.linalg.qr, rand(*s, dtype=C), label=f"complex-{s}") for s in SHAPES[:3]),
    case("linalg_qr", part(torch.linalg.qr, 0), rand(3, 4), label="Q-alone"),
    case("linalg_qr", part(torch.linalg.qr, 1), rand(4, 3), label="R-alone"),
    case("linalg_qr", lambda a: torch.linalg.qr(a, mode="complete"), rand(3, 4), label="complete-wide"),
    case("qr", torch.qr, rand(4, 3)),
    case("qr", lambda a: a.qr(some=False), rand(3, 4), label="complete"),
    case("linalg_eigh", lambda a: torch.linalg.eigh(hermitian(a)), rand(3, 3)),
    case("linalg_eigh", lambda a: torch.linalg.eigh(hermitian(a), UPLO="U"), rand(2, 3, 3), label="upper-batch"),
    case(
        "linalg_eigh", part(lambda a: torch.linalg.eigh(hermitian(a)), 0), rand(3, 3, dtype=C), label="complex-values"
    ),
    case(
        "linalg_eigh", lambda a: free_of_phase(*torch.linalg.eigh(hermitian(a))), rand(3, 3, dtype=C), label="complex"
    ),
    case("linalg_eigh", part(lambda a: torch.linalg.eigh(hermitian(a)), 1), rand(3, 3), label="vectors-alone"),
    case("linalg_eigh", lambda a: torch.linalg.eigh(hermitian(a)), rand(0, 3, 3), label="empty"),
    case("linalg_eigvalsh", lambda a: torch.linalg.eigvalsh(hermitian(a)), rand(2, 3, 3)),
    case(
        "linalg_eigvalsh", lambda a: torch.linalg.eigvalsh(hermitian(a), UPLO="U"), rand(3, 3, dtype=C), label="complex"
    ),
    case("linalg_eig", part(torch.linalg.eig, 0), rand(2, 3, 3), label="values"),
    case("linalg_eig", lambda a: free_of_phase(*torch.linalg.eig(a)), rand(3, 3)),
    case("linalg_eig", lambda a: free_of_phase(*torch.linalg.eig(a)), rand(2, 3, 3, dtype=C), label="complex"),
    case("linalg_eig", lambda a: torch.linalg.eig(a)[1].abs(), rand(3, 3), label="vectors-alone"),
    case("linalg_eigvals", torch.linalg.eigvals, rand(2, 3, 3)),
    *(case("linalg_svd", lambda a: torch.linalg.svd(a, full_matrices=False), rand(*s), label=str(s)) for s in SHAPES),
    *(
        case(
            "linalg_svd",
            lambda a: free_of_phase(*torch.linalg.svd(a, full_matrices=False)),
            rand(*s, dtype=C),
            label=f"complex-{s}",
        )
        for s in SHAPES[:3]
    ),
    *(
        case("linalg_svd", part(torch.linalg.svd, i, full_matrices=False), rand(4, 3), label=f"{i}-alone")
        for i in range(3)
    ),
    case("linalg_svd", lambda a: torch.linalg.svd(a)[1], rand(4, 3), label="full"),
    case("linalg_svd", lambda a: torch.linalg.svd(a)[0][..., :3].abs(), rand(4, 3), label="full-vectors"),
    case(
        "linalg_svd",
        lambda a: (lambda u, s, v: (u * s) @ v)(*torch.linalg.svd(a, full_matrices=False)),
        rand(4, 3, dtype=C),
        label="complex-product",
    ),
    case("svd", torch.svd, rand(4, 3)),
    case("svd", lambda a: torch.svd(a, some=False)[1], rand(3, 4), label="full"),
    case("svd", lambda a: torch.svd(a, compute_uv=False)[1], rand(2, 3, 4), label="values"),
    case("linalg_svdvals", torch.linalg.svdvals, rand(2, 4, 3)),
    case("linalg_svdvals", torch.linalg.svdvals, rand(3, 3, dtype=C), label="complex"),
    case("linalg_householder_product", torch.linalg.householder_product, rand(4, 3), rand(2)),
    case(
        "linalg_householder_product",
        torch.linalg.householder_product,
        rand(2, 4, 3, dtype=C),
        rand(2, 3, dtype=C),
        label="complex",
    ),
    case("linalg_householder_product", torch.linalg.householder_product, rand(4, 3), rand(0), label="no-reflection"),
    case("orgqr", torch.orgqr, rand(4, 3), rand(3)),
    *(
        case(
            "ormqr",
            lambda a, t, c, f=f: torch.ormqr(a, t, c, *f),
            rand(4, 3, dtype=C),
            rand(3, dtype=C),
            rand(*((4, 2) if f[0] else (2, 4)), dtype=C),
            label=f"left-{f[0]}-transpose-{f[1]}",
        )
        for f in ((True, False), (True, True), (False, False), (False, True))
    ),
    case("cholesky", lambda a: torch.cholesky(positive(a)), rand(2, 3, 3)),
    case("cholesky", lambda a: positive(a).cholesky(upper=True), rand(3, 3, dtype=C), label="complex-upper"),
    case("linalg_cholesky", lambda a: torch.linalg.cholesky(positive(a)), rand(2, 3, 3)),
    case("linalg_cholesky", lambda a: torch.linalg.cholesky(positive(a), upper=True), rand(3, 3), label="upper"),
    case("linalg_cholesky", lambda a: torch.linalg.cholesky(positive(a)), rand(2, 3, 3, dtype=C), label="complex"),
    case("linalg_cholesky", lambda a: torch.linalg.cholesky(positive(a)), rand(0, 3, 3), label="empty"),
    case("linalg_cholesky_ex", lambda a: torch.linalg.cholesky_ex(positive(a))[0], rand(2, 3, 3)),
    case(
        "linalg_cholesky_ex",
        lambda a: torch.linalg.cholesky_ex(positive(a), upper=True).L,
        rand(3, 3, dtype=C),
        label="complex-upper",
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize(
    "call",
    [lambda a: torch.linalg.qr(a, mode="r")[1], lambda a: torch.linalg.qr(a, mode="complete")[1]],
    ids=["r", "complete-tall"],
)
def test_modes_of_qr_without_a_derivative_are_refused(call: Callable[..., Any], device: torch.device) -> None:
    x = tracer.track(rand(4, 3)(device), True)
    with pytest.raises(UnsupportedCallError, match="has no derivative"):
        call(x).sum().backward()


@pytest.mark.parametrize(
    "vectors",
    [
        lambda a: torch.linalg.eigh(a + a.mH)[1],
        lambda a: torch.linalg.eig(a)[1],
        lambda a: torch.linalg.svd(a)[0],
        lambda a: torch.linalg.svd(a)[2],
    ],
    ids=["eigh", "eig", "svd-U", "svd-V"],
)
def test_loss_that_depends_on_the_phase_of_vectors_is_refused(
    vectors: Callable[..., Any], device: torch.device
) -> None:
    x = tracer.track(rand(3, 3, dtype=C)(device), True)
    with pytest.raises(UnsupportedCallError, match="phase"):
        (vectors(x) * rand(3, 3, dtype=C, seed=5)(device)).sum().abs().backward()


def test_vectors_of_equal_eigenvalues_have_no_derivative_but_the_values_do(device: torch.device) -> None:
    x = tracer.track(torch.eye(2, device=device), True)
    torch.linalg.eigh(x)[0].sum().backward()
    torch.testing.assert_close(plain(x.grad), torch.eye(2, device=device))


@pytest.mark.parametrize(
    "vectors", [lambda a: torch.linalg.eigh(a)[1], lambda a: torch.linalg.svd(a)[0]], ids=["eigh", "svd"]
)
def test_gradient_through_vectors_of_equal_eigenvalues_is_nan(
    vectors: Callable[..., Any], device: torch.device
) -> None:
    x = tracer.track(torch.eye(2, device=device), True)
    vectors(x).abs().sum().backward()
    assert plain(x.grad).isnan().any()


def test_equal_singular_values_have_a_derivative(device: torch.device) -> None:
    x = tracer.track(torch.eye(2, device=device), True)
    torch.linalg.svdvals(x).sum().backward()
    torch.testing.assert_close(plain(x.grad), torch.eye(2, device=device))


def test_results_keep_their_names(device: torch.device) -> None:
    x = tracer.track(rand(3, 3)(device), True)
    assert torch.qr(x).Q.requires_grad
    assert torch.svd(x).V.requires_grad
    assert torch.linalg.eigh(x).eigenvectors.requires_grad
