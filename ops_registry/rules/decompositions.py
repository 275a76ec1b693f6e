"""Decompositions of a matrix: LU, QR, eigenvalues, singular values, Householder reflections.

Gradients are written on the vectors that were returned, never on new ones: their sign or phase is not unique.
"""

import torch
import torch.nn.functional as F

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition
from ops_registry.rules.helpers import conj


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


@backward(torch.linalg.lu_factor, wrt="A")
@backward(torch.linalg.lu_factor_ex, wrt="A")
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


# Eigenvalues and eigenvectors: V⁻¹ dA V has dλ on its diagonal and (λ_j - λ_i) (V⁻¹ dV)_ij off it.


def divided(matrix, values):
    """M_ij / (values_j - values_i) off the diagonal, 0 on it."""
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    diagonal = torch.eye(values.shape[-1], dtype=torch.bool, device=values.device)
    return torch.where(diagonal, 0, matrix / torch.where(diagonal, 1, gaps))


def skew(matrix):
    return matrix - matrix.mH


def require_free_phase(op, products):
    """Refuse a loss that depends on the phase of complex vectors, which is arbitrary.

    The imaginary part of the diagonal of ``products``, vectorsᴴ times their gradients, is its derivative in the phase.
    """
    if products.is_complex():
        turn = products.diagonal(dim1=-2, dim2=-1).imag
        if not torch.allclose(turn, torch.zeros_like(turn), rtol=1e-2, atol=1e-2):
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
    squares = S * S
    grad_U = None if grad_U is None else grad_U[..., :k]
    grad_Vh = None if grad_Vh is None else grad_Vh[..., :k, :]
    of_U = None if grad_U is None else U.mH @ grad_U
    of_V = None if grad_Vh is None else Vh @ grad_Vh.mH
    require_free_phase("linalg.svd", of_U if of_V is None else of_V if of_U is None else of_U + of_V)
    inner = 0 if grad_S is None else torch.diag_embed(grad_S)
    if of_U is not None:
        turned = skew(of_U)
        inner = inner + divided(turned, squares) * S.unsqueeze(-2)
        if turned.is_complex():  # a phase common to a pair of vectors is free; it is left with U
            inner = inner + torch.diag_embed(turned.diagonal(dim1=-2, dim2=-1) / (2 * S))
    if of_V is not None:
        inner = inner + S.unsqueeze(-1) * divided(skew(of_V), squares)
    result = U @ inner.to(U.dtype) @ Vh
    if grad_U is not None and U.shape[-2] > k:
        scaled = grad_U / S.unsqueeze(-2)
        result = result + (scaled - U @ (U.mH @ scaled)) @ Vh
    if grad_Vh is not None and Vh.shape[-1] > k:
        scaled = grad_Vh / S.unsqueeze(-1)
        result = result + U @ (scaled - (scaled @ Vh.mH) @ Vh)
    return result


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


# Householder reflections H = I - tau v vᴴ, with v below the diagonal of the input and 1 on it.


def reflections(input, tau):
    """(v, tau) of each, as columns."""
    for i in range(tau.shape[-1]):
        v = input[..., i + 1 :, i : i + 1]
        one = torch.ones_like(input[..., :1, :1])
        zeros = torch.zeros_like(input[..., :i, :1])
        yield torch.cat([zeros, one, v], -2), tau[..., i : i + 1].unsqueeze(-1)


def made_of(result, input, tau):
    """``result``, which depends on ``input`` and ``tau`` even if there is no reflection: empty sums are added."""
    return result if tau.shape[-1] else result + input[..., :0].sum() + tau.sum()


@decomposition(torch.linalg.householder_product)
def householder_product(input, tau):
    m, n = input.shape[-2:]
    result = made_of(torch.eye(m, n, dtype=input.dtype, device=input.device).expand_as(input), input, tau)
    for v, factor in reversed(list(reflections(input, tau))):
        result = result - factor * v @ (v.mH @ result)
    return result


@decomposition(torch.orgqr)
def orgqr(input, input2):
    return torch.linalg.householder_product(input, input2)


@decomposition(torch.ormqr)
def ormqr(input, input2, input3, left, transpose):
    # Q = H_1 H_2 …; from the left Q applies the last first, from the right the first. Qᴴ turns that round.
    steps = list(reflections(input, input2))
    result = made_of(input3, input, input2)
    for v, factor in steps if left == transpose else reversed(steps):
        factor = conj(factor) if transpose else factor
        result = result - factor * v @ (v.mH @ result) if left else result - (result @ v) @ (factor * v.mH)
    return result
