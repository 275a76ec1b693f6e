"""Decompositions of a matrix: LU, QR, Cholesky, eigenvalues, singular values, Householder reflections.

Gradients are written on the vectors that were returned, never on new ones: their sign or phase is not unique.
"""

import torch
import torch.nn.functional as F

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj
from ops_registry.shared.decisions import everywhere
from ops_registry.shared.optional import total


def zeros_for_none(grads, results):
    return [torch.zeros_like(result) if grad is None else grad for grad, result in zip(grads, results, strict=True)]


# LU: A = P L U. L⁻¹ dL is strictly lower triangular, dU U⁻¹ upper triangular, and their sum is L⁻¹ Pᵀ dA U⁻¹.


def lu_backward(grad_L, grad_U, P, L, U):
    """The gradient of A. L may have rows below its square part, or U columns beside it, linear in those of A."""
    k = L.shape[-1]
    first_L, first_U = L[..., :k, :], U[..., :, :k]
    rest_L, rest_U = grad_L[..., k:, :], grad_U[..., k:]
    lower = first_L.mH @ grad_L[..., :k, :] - rest_U @ U[..., k:].mH
    upper = grad_U[..., :k] @ first_U.mH - L[..., k:, :].mH @ rest_L
    rows = torch.cat([lower.tril(-1) + upper.triu(), rest_L], -2)
    rows = torch.linalg.solve_triangular(first_U.mH, rows, upper=False, left=False)
    columns = torch.cat([rows[..., :k, :], rest_U], -1)
    columns = torch.linalg.solve_triangular(first_L.mH, columns, upper=True, unitriangular=True)
    if L.shape[-2] > k:
        columns = torch.cat([columns, rows[..., k:, :]], -2)
    return P @ columns if P.numel() or not columns.numel() else columns  # P is empty where there was no pivoting


@backward(torch.linalg.lu, wrt="A", constant_results=(0,))
def lu(grad, P, L, U):
    grad_L, grad_U = zeros_for_none(grad[1:], (L, U))
    return lu_backward(grad_L, grad_U, P, L, U)


@backward(torch.linalg.lu_factor, torch.linalg.lu_factor_ex, wrt="A")
@backward(torch._C._VariableFunctions._lu_with_info, wrt="input")
def lu_factor(grad, LU, pivots):
    k = min(LU.shape[-2:])
    P, L, U = torch.lu_unpack(LU, pivots)
    return lu_backward(grad[..., :k].tril(-1), grad[..., :k, :].triu(), P, L, U)


@backward(torch.lu_unpack, wrt="LU_data", constant_results=(0,))
def lu_unpack(grad, LU_data_shape):
    _, grad_L, grad_U = grad
    m, n = LU_data_shape[-2:]
    parts = []
    if grad_L is not None:
        parts.append(F.pad(grad_L.tril(-1), (0, max(n - m, 0))))
    if grad_U is not None:
        parts.append(F.pad(grad_U.triu(), (0, 0, 0, max(m - n, 0))))
    return sum(parts[1:], parts[0]) if parts else None


# QR (Seeger et al., 2017): grad_A = (grad_Q + Q H) R⁻ᴴ, with H Hermitian like the lower half of R grad_Rᴴ - grad_Qᴴ Q.


@backward(torch.linalg.qr, wrt="A")
def qr(grad, mode, Q, R):
    if mode == "r":
        raise UnsupportedCallError("linalg.qr(mode='r') has no derivative: it needs Q. Use mode='reduced'.")
    m, n = Q.shape[-2], R.shape[-1]
    if mode == "complete" and m > n:
        raise UnsupportedCallError(
            "linalg.qr(mode='complete') of a matrix with more rows than columns has no derivative: the columns of Q "
            "beyond those of the matrix are arbitrary. Use mode='reduced'."
        )
    grad_Q, grad_R = zeros_for_none(grad, (Q, R))
    if m < n:  # the columns beyond the square are Q times those of R
        rest_R, rest_grad = R[..., m:], grad_R[..., m:]
        grad_Q = grad_Q + Q @ (rest_R @ rest_grad.mH)
        R, grad_R = R[..., :m], grad_R[..., :m]
    M = R @ grad_R.mH - grad_Q.mH @ Q
    hermitian = M.tril(-1) + M.tril(-1).mH + torch.diag_embed(M.diagonal(dim1=-2, dim2=-1).real).to(M.dtype)
    grad_A = torch.linalg.solve_triangular(R.mH, grad_Q + Q @ hermitian, upper=False, left=False)
    return torch.cat([grad_A, Q @ rest_grad], -1) if m < n else grad_A


@decomposition(torch.qr)
def torch_qr(input, some):
    return torch.return_types.qr(torch.linalg.qr(input, "reduced" if some else "complete"))


# Cholesky: A = L Lᴴ. L⁻¹ dL is the lower triangle of L⁻¹ dA L⁻ᴴ, its diagonal halved. The gradient is symmetric as well.


def cholesky_backward(grad, L):
    lower = (L.mH @ grad).tril()
    half = torch.linalg.solve_triangular(L.mH, (lower + lower.tril(-1).mH) / 2, upper=True)
    return torch.linalg.solve_triangular(L, half, upper=False, left=False)


@backward(torch.cholesky, torch.linalg.cholesky, wrt="input")
def cholesky(grad, upper, result):
    return cholesky_backward(grad.mH, result.mH) if upper else cholesky_backward(grad, result)


@backward(torch.linalg.cholesky_ex, wrt="input")
def cholesky_ex(grad, upper, L):
    return cholesky_backward(grad.mH, L.mH) if upper else cholesky_backward(grad, L)


# Eigenvalues and eigenvectors: V⁻¹ dA V has dλ on its diagonal and (λ_j - λ_i) (V⁻¹ dV)_ij off it.


def divided(matrix, values):
    """M_ij / (values_j - values_i) off the diagonal, 0 on it."""
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    identity = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    return matrix * (1 - identity) / (gaps + identity)


def skew(matrix):
    return matrix - matrix.mH


def require_free_phase(op, products):
    """Refuse a loss that depends on the phase of complex vectors, which is arbitrary.

    The imaginary part of the diagonal of ``products``, vectorsᴴ times their gradients, is its derivative in the phase.
    """
    if products.is_complex():
        turn = products.diagonal(dim1=-2, dim2=-1).imag
        if not everywhere(turn.abs() <= 1e-2):
            raise UnsupportedCallError(
                f"{op}: the loss depends on the phase of complex vectors, which is arbitrary: it has no derivative. "
                f"Let it depend on what the phase leaves alone, as abs()."
            )


@backward(torch.linalg.eigh, wrt="input")
def eigh(grad, eigenvalues, eigenvectors):
    grad_values, grad_vectors = grad
    V = eigenvectors
    if grad_vectors is None:
        return (V * grad_values.unsqueeze(-2)) @ V.mH
    product = V.mH @ grad_vectors
    require_free_phase("linalg.eigh", product)
    inner = divided(skew(product) / 2, eigenvalues)
    if grad_values is not None:
        inner = inner + torch.diag_embed(grad_values)
    return V @ inner @ V.mH


@decomposition(torch.linalg.eigvalsh)
def eigvalsh(input, UPLO):
    return torch.linalg.eigh(input, UPLO)[0]


@backward(torch.linalg.eig, wrt="input")
def eig(grad, eigenvalues, eigenvectors):
    grad_values, grad_vectors = grad
    V = eigenvectors
    if grad_vectors is None:
        return torch.linalg.solve(V.mH, grad_values.unsqueeze(-1) * V.mH)
    product = V.mH @ grad_vectors
    require_free_phase("linalg.eig", product)
    # Each eigenvector has norm 1: what would stretch it is taken away.
    stretch = product.diagonal(dim1=-2, dim2=-1).real.unsqueeze(-2)
    inner = divided(product - (V.mH @ V) * stretch, conj(eigenvalues))
    if grad_values is not None:
        inner = inner + torch.diag_embed(grad_values)
    return torch.linalg.solve(V.mH, inner @ V.mH)


@decomposition(torch.linalg.eigvals)
def eigvals(input):
    return torch.linalg.eig(input)[0]


# Singular values: A = U S Vᴴ. Uᴴ dA V has dS on its diagonal; off it, it is dΩ_U S - S dΩ_V with skew-Hermitian Ω.


@backward(torch.linalg.svd, wrt="A")
def svd(grad, U, S, Vh):
    grad_U, grad_S, grad_Vh = grad
    k = S.shape[-1]
    U, Vh = U[..., :k], Vh[..., :k, :]  # of full matrices, the vectors of singular value 0 are arbitrary
    if grad_U is None and grad_Vh is None:
        return (U * grad_S.unsqueeze(-2)) @ Vh
    grad_U = None if grad_U is None else grad_U[..., :k]
    grad_Vh = None if grad_Vh is None else grad_Vh[..., :k, :]
    of_U = None if grad_U is None else U.mH @ grad_U
    of_V = None if grad_Vh is None else Vh @ grad_Vh.mH
    require_free_phase("linalg.svd", of_U if of_V is None else of_V if of_U is None else of_U + of_V)
    row, column = S.unsqueeze(-2), S.unsqueeze(-1)
    turned = total(None if of_U is None else skew(of_U) * row, None if of_V is None else column * skew(of_V))
    inner = divided(turned, S * S)
    if grad_S is not None:
        inner = inner + torch.diag_embed(grad_S)
    if of_U is not None and of_U.is_complex():  # a phase common to a pair of vectors is free; it is left with U
        inner = inner + torch.diag_embed(skew(of_U).diagonal(dim1=-2, dim2=-1) / (2 * S))
    # What grad_U has outside of the columns of U is (I - U Uᴴ) grad_U, and likewise for V.
    if of_U is not None and U.shape[-2] > k:
        return (U @ (inner - of_U / row) + grad_U / row) @ Vh
    if of_V is not None and Vh.shape[-1] > k:
        return U @ ((inner - of_V.mH / column) @ Vh + grad_Vh / column)
    return U @ inner @ Vh


@decomposition(torch.svd)
def torch_svd(input, some, compute_uv):
    if not compute_uv:
        m, n = input.shape[-2:]
        U = input.new_zeros(*input.shape[:-2], m, m)
        V = input.new_zeros(*input.shape[:-2], n, n)
        return torch.return_types.svd((U, torch.linalg.svdvals(input), V))
    U, S, Vh = torch.linalg.svd(input, full_matrices=not some)
    return torch.return_types.svd((U, S, Vh.mH))


@decomposition(torch.linalg.svdvals)
def svdvals(A, driver):
    return torch.linalg.svd(A, full_matrices=False, driver=driver)[1]


# Householder reflections H_i = I - tau_i v_i v_iᴴ, with v_i below the diagonal of the input and 1 on it. Q = H_1 H_2 …
# is applied one reflection after the other. In each, C - tau v (vᴴ C) = C - tau v c, a cotangent G of its result gives
#     C: G - conj(tau) v g,  tau: -<c, g>,  v: -conj(tau) G cᴴ - tau C gᴴ,  with the rows c = vᴴ C and g = vᴴ G.


def reflections(input, tau, transpose):
    """(v, tau) of each, as columns, in the order in which they are applied from the left; of Qᴴ with ``transpose``."""
    count = tau.shape[-1]
    for i in range(count) if transpose else reversed(range(count)):
        one = torch.ones_like(input[..., :1, :1])
        v = torch.cat([torch.zeros_like(input[..., :i, :1]), one, input[..., i + 1 :, i : i + 1]], -2)
        factor = tau[..., i : i + 1].unsqueeze(-1)
        yield i, v, conj(factor) if transpose else factor


def reflected_backward(grad, input, tau, C, transpose, wants_input, wants_tau):
    """The gradients of ``input``, ``tau`` (None where not wanted) and ``C`` through Q C, or through Qᴴ C with ``transpose``."""
    steps = []
    for i, v, factor in reflections(input, tau, transpose):
        row = v.mH @ C
        steps.append((i, v, factor, C, row))
        C = C - factor * v @ row
    columns, factors = [None] * len(steps), [None] * len(steps)
    for i, v, factor, before, row in reversed(steps):
        grad_row = v.mH @ grad
        factors[i] = -(conj(row) * grad_row).sum(-1)
        grad_v = -(conj(factor) * (grad @ row.mH) + factor * (before @ grad_row.mH))
        columns[i] = torch.cat([torch.zeros_like(grad_v[..., : i + 1, :]), grad_v[..., i + 1 :, :]], -2)
        grad = grad - conj(factor) * v @ grad_row
    grad_input = grad_tau = None
    if wants_input:
        unread = torch.zeros_like(input[..., len(steps) :])
        grad_input = torch.cat([*columns, unread], -1)
    if wants_tau:
        grad_tau = torch.cat(factors, -1) if steps else torch.zeros_like(tau)
        grad_tau = conj(grad_tau) if transpose else grad_tau
    return grad_input, grad_tau, grad


@backward(torch.linalg.householder_product, wrt=("input", "tau"))
def householder_product(grad, input, tau, needs):
    start = torch.eye(*input.shape[-2:], dtype=input.dtype, device=input.device).expand_as(input)
    return reflected_backward(grad, input, tau, start, False, needs.input, needs.tau)[:2]


@decomposition(torch.orgqr)
def orgqr(input, input2):
    return torch.linalg.householder_product(input, input2)


@backward(torch.ormqr, wrt=("input", "input2", "input3"))
def ormqr(grad, input, input2, input3, left, transpose, needs):
    wants = needs.input, needs.input2
    if left:
        grad_input, grad_tau, grad_C = reflected_backward(grad, input, input2, input3, transpose, *wants)
    else:  # C Q = (Qᴴ Cᴴ)ᴴ
        grad_input, grad_tau, grad_C = reflected_backward(grad.mH, input, input2, input3.mH, not transpose, *wants)
        grad_C = grad_C.mH
    return grad_input, grad_tau, grad_C if needs.input3 else None
