"""Products of sparse matrices: torch.sparse.mm with and without a reduction, addmm, sampled_addmm.

As for dense ones, Y = A B gives grad_A = grad Bᴴ and grad_B = Aᴴ grad. But a sparse factor has a gradient only at its entries: each
is the dot product of a row of ``grad`` and a row of B, so that beside a dense factor no dense product is made.
"""

import torch

from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.rules.sparse import (
    blocksize,
    coalesced,
    coordinates,
    flat_values,
    is_sparse,
    like,
    masked,
    values_shape,
)
from ops_registry.shared.conjugate import scaled
from ops_registry.shared.precision import wide

#: The dtypes that the kernel of ``sampled_addmm`` takes.
_SAMPLED = (torch.float32, torch.float64, torch.complex64, torch.complex128)

_sparse_mm = torch._C._sparse._sparse_mm
_sparse_addmm = torch._C._sparse._sparse_addmm
_sparse_mm_reduce_impl = torch._C._sparse._sparse_mm_reduce_impl
sampled_addmm = torch._C._sparse.sparse_sampled_addmm


def sampled_product(left, right, pattern):
    """``left @ right`` at the entries of ``pattern``."""
    pattern = coalesced(pattern)
    if is_sparse(left) or is_sparse(right):
        return masked(left @ right, pattern)
    if pattern.layout is torch.sparse_csr and left.dtype in _SAMPLED:
        zero = like(pattern, torch.zeros_like(pattern.detach().values(), dtype=left.dtype))
        return sampled_addmm(zero, left, right, beta=0.0)
    if blocksize(pattern) is not None:
        return masked(left @ right, pattern)
    *batch, row, column = coordinates(pattern)
    rows, columns = (*batch, row), (*batch, column)
    products = (wide(left)[rows] * wide(right).mT[columns]).sum(1).to(left.dtype)
    return like(pattern, products.reshape(values_shape(pattern)))


def product_for(left, right, factor):
    """``left @ right`` as the gradient of ``factor``: at its entries alone if it is sparse."""
    return sampled_product(left, right, factor) if is_sparse(factor) else left @ right


@overloaded(_sparse_mm)
def choose_sparse_mm(sparse, dense, reduce=None):
    return torch.ops.aten._sparse_mm.default if reduce is None else torch.ops.aten._sparse_mm.reduce


@backward(torch.ops.aten._sparse_mm.default, wrt="sparse", cast_to_grad="dense")
def _sparse_mm_sparse(grad, sparse, dense):
    return product_for(grad, dense.mH, sparse)


@backward(torch.ops.aten._sparse_mm.default, wrt="dense", cast_to_grad="sparse")
def _sparse_mm_dense(grad, sparse, dense):
    return product_for(sparse.mH, grad, dense)


@decomposition(torch.ops.aten._sparse_mm.reduce)
def _sparse_mm_reduce(sparse, dense, reduce):
    return _sparse_mm_reduce_impl(sparse, dense, reduce)[0]


@decomposition(torch._sparse_sparse_matmul)
def _sparse_sparse_matmul(input, other):
    return torch.sparse.mm(input, other)


# beta input + alpha mat1 mat2


@backward(_sparse_addmm, wrt="input")
def _sparse_addmm_input(grad, beta):
    return torch.zeros_like(grad) if beta == 0 else scaled(grad, beta)


@backward(_sparse_addmm, wrt="mat1", cast_to_grad="mat2")
def _sparse_addmm_mat1(grad, mat1, mat2, alpha):
    return scaled(product_for(grad, mat2.mH, mat1), alpha)


@backward(_sparse_addmm, wrt="mat2", cast_to_grad="mat1")
def _sparse_addmm_mat2(grad, mat1, mat2, alpha):
    return scaled(product_for(mat1.mH, grad, mat2), alpha)


# beta input + alpha mat1 mat2, the product taken at the entries of the sparse input


@backward(sampled_addmm, wrt="input")
def sparse_sampled_addmm_input(grad, beta):
    return scaled(grad, beta)


@backward(sampled_addmm, wrt="mat1")
def sparse_sampled_addmm_mat1(grad, input, mat2, alpha):
    return scaled(_product(masked(grad, input), mat2.mH), alpha)


@backward(sampled_addmm, wrt="mat2")
def sparse_sampled_addmm_mat2(grad, input, mat1, alpha):
    return scaled(_product(mat1.mH, masked(grad, input)), alpha)


def _product(left, right):
    """The product of two matrices, or batches of them, of which one is sparse."""
    if left.dim() == 2:
        return _sparse_mm(left, right)
    if is_sparse(right):
        return _sum_of_terms(right, left.mT, -1, -2).mT
    return _sum_of_terms(left, right, -2, -1)


def _sum_of_terms(sparse, dense, onto, over):
    """Each entry of batches of sparse matrices times the row of ``dense`` that its index ``over`` names, summed by its index ``onto``."""
    indices = coordinates(sparse)
    read, written = (*indices[:-2], indices[over]), (*indices[:-2], indices[onto])
    terms = flat_values(sparse).unsqueeze(1) * dense[read]
    zeros = terms.new_zeros(*sparse.shape[:-2], sparse.shape[onto], terms.shape[1])
    return zeros.index_put(written, terms, accumulate=True)


# the sum, mean, maximum or minimum over a row's entries k of values_k times the row of ``other`` that entry k points to


def _reduced(input, other, reduce):
    # torch returns which entry was chosen only where its own autograd wants a gradient of the input.
    wanting = torch.Tensor.detach(input).requires_grad_(reduce in ("amax", "amin"))
    result, chosen = _sparse_mm_reduce_impl(wanting, other, reduce)
    return (result.detach(), chosen), {"chosen": chosen}


@backward(_sparse_mm_reduce_impl, wrt="input", forward=_reduced)
def _sparse_mm_reduce_impl_input(grad, input, other, reduce, chosen):
    if reduce in ("sum", "mean"):
        return sampled_product(_per_entry(grad, input, reduce), other.mT, input)
    if input._nnz() == 0:
        return None
    entry, grad = _choices(grad, input, chosen)
    products = grad * other.gather(0, input.col_indices().long()[entry])
    return like(input, products.new_zeros(input._nnz()).index_add(0, entry.flatten(), products.flatten()))


@backward(_sparse_mm_reduce_impl, wrt="other")
def _sparse_mm_reduce_impl_other(grad, input, other_shape, reduce, chosen):
    if reduce in ("sum", "mean"):
        return _sparse_mm(input.mT.to_sparse_csr(), _per_entry(grad, input, reduce), "sum")
    if input._nnz() == 0:
        return None
    entry, grad = _choices(grad, input, chosen)
    return grad.new_zeros(other_shape).scatter_add(0, input.col_indices().long()[entry], grad * input.values()[entry])


def _per_entry(grad, input, reduce):
    """The gradient of each term that a row sums up."""
    if reduce == "sum":
        return grad
    return grad / input.crow_indices().diff().clamp(min=1).unsqueeze(1)


def _choices(grad, input, chosen):
    """Which entry each element of the result took, and the gradient of its term: none where a row has no entries."""
    count = input._nnz()
    return chosen.clamp(max=count - 1), grad.masked_fill(chosen == count, 0)
