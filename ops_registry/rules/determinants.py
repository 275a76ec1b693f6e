"""Determinants and their logarithms.

The derivative of det is the matrix of cofactors. Every matrix has one: nothing here divides by the determinant.
"""

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj
from ops_registry.shared.decisions import everywhere
from ops_registry.shared.recorded import recorded


def cofactors(matrix):
    """The conjugated cofactors, conj(det A) A⁻ᴴ where A can be inverted: d det A = Σ conj(C_ij) dA_ij.

    Zero pivots of A = PLU are moved by one rounding error. That moves the cofactors, polynomials in A, as little; the
    large inverse is taken back by the small determinant.
    """
    if has_torch_function((matrix,)):
        return handle_torch_function(cofactors, (matrix,), matrix)
    return cofactors_of(*torch.linalg.lu_factor_ex(matrix)[:2], transposed=False)


def cofactors_of(LU, pivots, transposed):
    """``cofactors`` of the matrix with these factors, or of the one whose transpose has them."""
    if LU.numel() == 0:
        return torch.zeros_like(LU)
    diagonal = LU.diagonal(dim1=-2, dim2=-1)
    largest = LU.abs().amax((-2, -1)).unsqueeze(-1)
    rounding = torch.finfo(LU.dtype).eps * torch.where(largest > 0, largest, 1)
    moved = torch.where(diagonal == 0, rounding.to(LU.dtype), diagonal)
    swaps = (pivots != torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)).sum(-1)
    det = moved.prod(-1) * (1 - 2 * (swaps % 2))
    scaled = conj(det)[..., None, None] * torch.eye(LU.shape[-1], dtype=LU.dtype, device=LU.device)
    return torch.linalg.lu_solve(LU + torch.diag_embed(moved - diagonal), pivots, scaled, adjoint=not transposed)


@backward(cofactors, wrt="matrix")
def cofactors_matrix(grad, matrix):
    return moved_cofactors(matrix, grad)


def moved_cofactors(matrix, direction):
    """How the cofactors move with A: <moved_cofactors(A, E), F> is the second derivative of det at A along E and F.

    With A = U S Vᴴ the adjugate is φ V adj(S) Uᴴ, φ = det U det Vᴴ. At a diagonal S, in direction E, adj moves by
    -P_ij E_ij off the diagonal and by Σ_k P_ik E_kk on it; P_ij is the product of all singular values but two.
    """
    if has_torch_function((matrix, direction)):
        return handle_torch_function(moved_cofactors, (matrix, direction), matrix, direction)
    if matrix.numel() == 0:
        return torch.zeros_like(matrix)
    U, S, Vh = torch.linalg.svd(matrix)
    phase = torch.linalg.det(U) * torch.linalg.det(Vh)
    P = products_without_two(S)
    W = conj(phase)[..., None, None] * (U.mH @ direction @ Vh.mH).mH
    diagonal = W.diagonal(dim1=-2, dim2=-1)
    on = (P.to(W.dtype) @ diagonal.unsqueeze(-1)).squeeze(-1)
    off = -P * (W - torch.diag_embed(diagonal))
    return U @ (off + torch.diag_embed(on)) @ Vh


@backward(moved_cofactors, wrt="direction", linear=True)
def moved_cofactors_direction(grad, matrix):
    return moved_cofactors(matrix, grad)  # a second derivative is symmetric


@backward(moved_cofactors, wrt="matrix")
def moved_cofactors_matrix(grad, matrix, direction):
    # With B = A⁻¹ the second derivative is det A (tr BE tr BF - tr BEBF). Its derivative loses twice the digits that
    # the condition number takes, all of them at a singular matrix.
    limit = torch.finfo(matrix.dtype).eps ** (-1 / 3)
    if not everywhere(torch.linalg.cond(matrix.detach()) <= limit):  # of a zero matrix it is nan
        raise UnsupportedCallError(
            f"det: its third derivative needs a matrix whose condition number is below {limit:.0f}"
        )
    B = torch.linalg.inv(matrix)
    BE, BF = B @ direction, B @ grad
    tr_E, tr_F = trace(BE), trace(BF)
    BEBF = BE @ BF
    inner = (tr_E * tr_F - trace(BEBF)) * B - tr_F * (BE @ B) - tr_E * (BF @ B) + (BEBF + BF @ BE) @ B
    return (torch.linalg.det(matrix)[..., None, None] * inner).mH


def trace(matrix):
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def products_without_two(values):
    """P_ij is the product of all values but the i-th and j-th; 0 for i = j. No division: zeros do no harm."""
    n = values.shape[-1]
    identity = torch.eye(n, dtype=torch.bool, device=values.device)
    without_one = torch.where(identity, 1, values.unsqueeze(-2))  # row i has 1 in place of its value i
    one = torch.ones_like(without_one[..., :1])
    before = torch.cat([one, without_one[..., :-1]], -1).cumprod(-1)
    after = torch.cat([without_one[..., 1:], one], -1).flip(-1).cumprod(-1).flip(-1)
    return torch.where(identity, 0, before * after)


def factorised_transposed(matrix):
    """Whether torch factorises the transpose, as it does for the determinant of a real matrix laid out by rows."""
    return matrix.is_contiguous() and not matrix.is_complex()


def forward_det(matrix):
    result, LU, pivots = torch._linalg_det(matrix)
    return result, {"LU": LU, "pivots": pivots, "transposed": factorised_transposed(matrix)}


def _det(grad, matrix, LU, pivots, transposed):
    # The factors are constants: of no use where backward is recorded.
    return grad[..., None, None] * (cofactors(matrix) if recorded() else cofactors_of(LU, pivots, transposed))


@backward(torch.det, wrt="input", forward=forward_det)
def det(grad, input, LU, pivots, transposed):
    return _det(grad, input, LU, pivots, transposed)


@backward(torch.linalg.det, wrt="A", forward=forward_det)
def linalg_det(grad, A, LU, pivots, transposed):
    return _det(grad, A, LU, pivots, transposed)


# d log det A = tr(A⁻¹ dA): its real part moves logabsdet, its imaginary part turns the sign


def _slogdet(grad, matrix, sign, LU, pivots, transposed):
    grad_sign, grad_logabsdet = grad
    if grad_sign is not None and sign.is_complex():
        turn = -1j * (conj(grad_sign) * sign).imag
        factor = turn if grad_logabsdet is None else turn + grad_logabsdet
    elif grad_logabsdet is not None:
        factor = grad_logabsdet
    else:
        return None
    scaled = factor[..., None, None] * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    if recorded():  # the factors are constants
        return torch.linalg.solve_ex(matrix.mH, scaled)[0]
    return torch.linalg.lu_solve(LU, pivots, scaled, adjoint=not transposed)


def forward_slogdet(matrix, names=torch.return_types.linalg_slogdet):
    *results, LU, pivots = torch._linalg_slogdet(matrix)
    return names(results), {"LU": LU, "pivots": pivots, "transposed": factorised_transposed(matrix)}


@backward(torch.slogdet, wrt="input", forward=lambda matrix: forward_slogdet(matrix, torch.return_types.slogdet))
def slogdet(grad, input, sign, LU, pivots, transposed):
    return _slogdet(grad, input, sign, LU, pivots, transposed)


@backward(torch.linalg.slogdet, wrt="A", forward=forward_slogdet)
def linalg_slogdet(grad, A, sign, LU, pivots, transposed):
    return _slogdet(grad, A, sign, LU, pivots, transposed)


@decomposition(torch.logdet)
def logdet(input):
    sign, logabsdet = torch.linalg.slogdet(input)
    if sign.is_complex():
        return sign.log() + logabsdet
    return torch.where(sign == -1, torch.nan, logabsdet)
