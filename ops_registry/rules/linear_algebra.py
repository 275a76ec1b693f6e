"""Traces, inverses, linear systems and triangular factors.

From A X = B follows A dX = dB - dA X: grad_B solves the adjoint system, and grad_A = -grad_B Xᴴ.
"""

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ops_registry.declare import no_gradient
from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj
from ops_registry.shared.optional import total
from ops_registry.shared.recorded import recorded


@backward(torch.trace, linear=True)
def trace(grad, input_shape):
    return torch.ops.aten.diagonal_backward(grad.expand(min(input_shape)), input_shape, 0, 0, 1)


# inverse: dY = -Y dA Y


@backward(torch.inverse, wrt="input")
@backward(torch.linalg.inv, wrt="A")
def inverse(grad, result):
    return -(result.mH @ grad @ result.mH)


@backward(torch.linalg.inv_ex, wrt="A")
def inv_ex(grad, inverse):
    return -(inverse.mH @ grad @ inverse.mH)


# Pseudo-inverse (Golub and Pereyra): dP = -P dA P + P Pᴴ dAᴴ (I - A P) + (I - P A) dAᴴ Pᴴ P


def pinv_backward(grad, A, P):
    if A.shape[-2] < A.shape[-1]:  # the order of the products below suits a tall A; (Aᴴ)⁺ = Pᴴ
        return pinv_backward(grad.mH, A.mH, P.mH).mH
    adjoint, P_adjoint = grad.mH, P.mH
    beyond_columns = adjoint - A @ (P @ adjoint)
    beyond_rows = adjoint - adjoint @ (P @ A)
    return beyond_columns @ (P @ P_adjoint) + P_adjoint @ (P @ beyond_rows - grad @ P_adjoint)


@backward(torch.linalg.pinv, torch.pinverse, wrt="input")
def pinv(grad, input, result):
    return pinv_backward(grad, input, result)


# Least squares: X = A⁺ B. The residual |A X - B|² is stationary in X, so it changes through A and B alone.


def least_squares(A, B, rcond, driver):
    """``torch.linalg.lstsq``; of its results the solution and the residuals have a derivative."""
    if has_torch_function((A, B)):
        return handle_torch_function(least_squares, (A, B), A, B, rcond, driver)
    return torch.linalg.lstsq(A, B, rcond, driver=driver)


@decomposition(torch.linalg.lstsq)
def lstsq(input, b, rcond, driver):
    results = least_squares(input, b, rcond, driver)
    return type(results)((*results[:3], results[3].detach()))


@backward(least_squares, wrt=("A", "B"))
def least_squares_gradients(grad, needs, A, B):
    grad_X, grad_residuals = grad[:2]
    vector = B.ndim == A.ndim - 1
    if vector:
        B, grad_X = (None if t is None else t.unsqueeze(-1) for t in (B, grad_X))
    P = torch.linalg.pinv(A)
    grad_A = grad_B = None
    if grad_X is not None:
        grad_A = pinv_backward(grad_X @ B.mH, A, P) if needs.A else None
        grad_B = P.mH @ grad_X if needs.B else None
    if grad_residuals is not None and grad_residuals.numel():
        X = P @ B
        slope = 2 * grad_residuals.unsqueeze(-2) * (A @ X - B)
        grad_A = total(grad_A, slope @ X.mH) if needs.A else None
        grad_B = total(grad_B, -slope) if needs.B else None
    return grad_A, grad_B.squeeze(-1) if vector and grad_B is not None else grad_B


no_gradient(torch.linalg.matrix_rank)


# Linear systems A X = B, and X A = B where ``left`` is False.


def coefficient_gradient(grad_B, A, X, left):
    """The gradient of A, from that of B."""
    if X.ndim == A.ndim - 1 or X.ndim == 1:  # one right-hand side, a vector
        return -(grad_B.unsqueeze(-1) * conj(X).unsqueeze(-2))
    return -(grad_B @ X.mH if left else X.mH @ grad_B)


def solve_adjoint(A, LU, pivots, B, left):
    """X of Aᴴ X = B, or of X Aᴴ = B, by the known factors of A; anew where backward is recorded, as they are constants."""
    if recorded():
        return torch.linalg.solve_ex(A.mH, B, left=left)[0]
    if B.shape == A.shape[:-1]:  # one right-hand side for each matrix, a vector
        return torch.linalg.lu_solve(LU, pivots, B.unsqueeze(-1), adjoint=True).squeeze(-1)
    return torch.linalg.lu_solve(LU, pivots, B, left=left, adjoint=True)


def system_gradients(grad, A, X, LU, pivots, left, needs):
    """The gradients of A and B."""
    grad_B = solve_adjoint(A, LU, pivots, grad, left)
    return coefficient_gradient(grad_B, A, X, left) if needs.A else None, grad_B if needs.B else None


def forward_solve(A, B, left):
    result, LU, pivots, info = torch._linalg_solve_ex(A, B, left=left)
    torch._linalg_check_errors(info, "torch.linalg.solve", is_matrix=A.dim() == 2)
    return result, {"LU": LU, "pivots": pivots}


@backward(torch.linalg.solve, wrt=("A", "B"), forward=forward_solve, linear=["B"])
def solve(grad, needs, A, left, result, LU, pivots):
    return system_gradients(grad, A, result, LU, pivots, left, needs)


def forward_solve_ex(A, B, left, check_errors):
    result, LU, pivots, info = torch._linalg_solve_ex(A, B, left=left, check_errors=check_errors)
    return torch.return_types.linalg_solve_ex((result, info)), {"LU": LU, "pivots": pivots}


@backward(torch.linalg.solve_ex, wrt=("A", "B"), forward=forward_solve_ex)
def solve_ex(grad, needs, A, left, result, LU, pivots):
    return system_gradients(grad, A, result, LU, pivots, left, needs)


def triangle(matrix, upper, unitriangular=False):
    """The part of ``matrix`` that a triangular solver reads."""
    if upper:
        return matrix.triu(int(unitriangular))
    return matrix.tril(-int(unitriangular))


@backward(torch.linalg.solve_triangular, wrt=("input", "B"), linear=["B"])
def solve_triangular(grad, needs, input, upper, left, unitriangular, result):
    grad_B = torch.linalg.solve_triangular(input.mH, grad, upper=not upper, left=left, unitriangular=unitriangular)
    grad_A = None
    if needs.input:
        grad_A = triangle(coefficient_gradient(grad_B, input, result, left), upper, unitriangular)
    return grad_A, grad_B if needs.B else None


@backward(torch.triangular_solve, wrt=("input", "A"))
def triangular_solve(grad, needs, A, upper, transpose, unitriangular, solution):
    grad_X, grad_copy = grad
    if grad_X is None:
        return None, grad_copy
    grad_B = torch.triangular_solve(grad_X, conj(A), upper, not transpose, unitriangular)[0]
    grad_A = None
    if needs.A:
        grad_A = triangle(-(conj(solution) @ grad_B.mT if transpose else grad_B @ solution.mH), upper, unitriangular)
        grad_A = grad_A if grad_copy is None else grad_A + grad_copy
    return grad_B if needs.input else None, grad_A


def factor_gradient(grad_A, factor, upper):
    """The gradient of the triangular factor, from that of A = L Lᴴ or A = Uᴴ U."""
    twice = grad_A + grad_A.mH
    return factor @ twice if upper else twice @ factor


@backward(torch.cholesky_inverse, wrt="input")
def cholesky_inverse(grad, input, upper, result):
    return factor_gradient(-(result @ grad @ result), input, upper)


@backward(torch.cholesky_solve, wrt=("input", "input2"), linear=["input"])
def cholesky_solve(grad, needs, input2, upper, result):
    grad_B = torch.cholesky_solve(grad, input2, upper)
    grad_L = factor_gradient(-(grad_B @ result.mH), input2, upper) if needs.input2 else None
    return grad_B if needs.input else None, grad_L


# Systems with known factors A = P L U, where L and U are packed into one matrix


@backward(torch.linalg.lu_solve, wrt="B", linear=True)
def lu_solve_B(grad, LU, pivots, left, adjoint):
    return torch.linalg.lu_solve(LU, pivots, grad, left=left, adjoint=not adjoint)


@backward(torch.linalg.lu_solve, wrt="LU")
def lu_solve_LU(grad, LU, pivots, left, adjoint, result):
    grad_B = torch.linalg.lu_solve(LU, pivots, grad, left=left, adjoint=not adjoint)
    grad_A = -(grad_B @ result.mH if left else result.mH @ grad_B)
    P, L, U = torch.lu_unpack(LU, pivots)
    grad_A = P.mT @ (grad_A.mH if adjoint else grad_A)
    return (grad_A @ U.mH).tril(-1) + (L.mH @ grad_A).triu()


@decomposition(torch.lu_solve)
def lu_solve(input, LU_data, LU_pivots):
    return torch.linalg.lu_solve(LU_data, LU_pivots, input)


# Built from the above


@decomposition(torch.linalg.tensorinv)
def tensorinv(input, ind):
    rows, columns = input.shape[:ind], input.shape[ind:]
    return torch.linalg.inv(input.flatten(0, ind - 1).flatten(1)).reshape(columns + rows)


@decomposition(torch.linalg.tensorsolve)
def tensorsolve(input, other, dims):
    if dims is not None:
        input = input.movedim(tuple(dims), tuple(range(input.ndim - len(dims), input.ndim)))
    unknown = input.shape[other.ndim :]
    return torch.linalg.solve(input.reshape(other.numel(), unknown.numel()), other.reshape(-1)).reshape(unknown)


@decomposition(torch.linalg.cond)
def cond(input, p):
    if input.numel() == 0:
        return torch.linalg.cond(input.detach(), p)  # 0 by torch's convention, whatever the input
    if p is None or p in (2, -2):
        values = torch.linalg.svdvals(input)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if p == -2 else largest / smallest
    inverse, failed = torch.linalg.inv_ex(input)
    inverse = torch.where((failed > 0)[..., None, None], torch.inf, inverse)
    return torch.linalg.matrix_norm(input, p) * torch.linalg.matrix_norm(inverse, p)
