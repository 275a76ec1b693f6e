"""Products of vectors, matrices and tensors: dot and outer, matrix products in every combination of ranks, affine maps, tensordot, kron.

For Y = A B the differential is dY = dA B + A dB, so grad_A = grad Bᴴ and grad_B = Aᴴ grad. The rest is about ranks.
"""

import math

import torch

from ops_registry.declare import passes_through
from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj, scaled
from ops_registry.shared.descriptors import dim_of, is_contiguous, is_nested, layout_of, shape_of, stride_of
from ops_registry.shared.precision import HALF

matmul = torch.matmul
NOTHING: dict[str, torch.Tensor] = {}

#: The C function behind ``torch.tensordot``.
tensordot = torch._C._VariableFunctions.tensordot


def rows(tensor):
    """All vectors along the last axis of ``tensor``, as the rows of one matrix."""
    if tensor.ndim == 2:
        return tensor
    return tensor.flatten(0, -2) if tensor.ndim > 1 else tensor.unsqueeze(0)


def summed_product(left, right, shape):
    """``left @ right``, summed over the batch axes along which a tensor of ``shape`` is broadcast.

    They are folded into the contracted axis, Σ_b L_b R_b = [L_1 L_2 …] [R_1; R_2; …]: no product is made for each batch.
    """
    lead = max(left.ndim, right.ndim) - 2
    if lead == 0:
        return left @ right
    left, right = (t[(None,) * (lead + 2 - t.ndim)] if t.ndim < lead + 2 else t for t in (left, right))
    batch = (1,) * (lead + 2 - len(shape)) + tuple(shape[:-2])
    summed = [d for d in range(lead) if batch[d] == 1 and left.shape[d] != 1]
    if not summed:
        return left @ right
    remaining = [d for d in range(lead) if d not in summed]
    length = math.prod(left.shape[d] for d in summed) * left.shape[-1]
    wide = left.permute(*remaining, lead, *summed, lead + 1)
    tall = right.permute(*remaining, *summed, lead, lead + 1)
    wide = wide.reshape(*wide.shape[: len(remaining) + 1], length)
    tall = tall.reshape(*tall.shape[: len(remaining)], length, tall.shape[-1])
    return (wide @ tall).reshape(shape)


def as_batch(tensor):
    """``tensor``, or its copy where ``torch.matmul`` makes one: the axes of its batch are no one axis of the memory."""
    if dim_of(tensor) < 4 or layout_of(tensor) is not torch.strided or is_nested(tensor) or is_contiguous(tensor):
        return tensor
    stride = stride_of(tensor)
    if 0 in stride:
        return tensor  # what is broadcast is smaller than its copy
    outer = None
    for length, step in zip(shape_of(tensor)[-3::-1], stride[-3::-1], strict=True):
        if length != 1:
            if outer not in (None, step):
                return tensor.contiguous()
            outer = length * step
    return tensor


def forward_matmul(input, other):
    """The copies that the product makes are saved, as in torch, and not the arguments: what those are parts of can go."""
    if dim_of(other) < 3:
        return matmul(input, other), NOTHING
    input, other = as_batch(input), as_batch(other)
    return matmul(input, other), {"input": input, "other": other}


@backward(
    torch.matmul,
    wrt="input",
    cast_to_grad="other",
    forward=forward_matmul,
    copied=("input", "other"),
    linear=True,
)
def matmul_input(grad, input_shape, other):
    if other.ndim == 1:  # y = A v
        return grad.unsqueeze(-1) * conj(other)
    if len(input_shape) == 1:  # y = v B
        if other.ndim > 2 and grad.dtype in HALF:  # each product of the batch would be rounded before they are added
            return summed_product(grad.unsqueeze(-2), other.mH, (1, *input_shape)).squeeze(0)
        if other.ndim == 2:
            return conj(other) @ grad
        return (conj(other) @ grad.unsqueeze(-1)).squeeze(-1)
    if other.ndim == 2:
        return grad @ other.mH
    return summed_product(grad, other.mH, input_shape)


@backward(torch.matmul, wrt="other", cast_to_grad="input", linear=True)
def matmul_other(grad, input, other_shape):
    if input.ndim == 1:  # y = v B
        return conj(input).unsqueeze(-1) * grad.unsqueeze(-2) if len(other_shape) > 1 else conj(input) * grad
    if len(other_shape) == 1:  # y = A v
        return rows(input).mH @ grad.flatten()
    if len(other_shape) == 2:
        return rows(input).mH @ rows(grad)
    return summed_product(input.mH, grad, other_shape)


@backward(torch.mm, wrt="input", cast_to_grad="mat2", linear=True)
def mm_input(grad, mat2):
    return grad @ mat2.mH


@backward(torch.mm, wrt="mat2", cast_to_grad="input", linear=True)
def mm_mat2(grad, input):
    return input.mH @ grad


@backward(torch.bmm, wrt="input", cast_to_grad="mat2", linear=True)
def bmm_input(grad, mat2):
    return torch.bmm(grad, mat2.mH)


@backward(torch.bmm, wrt="mat2", cast_to_grad="input", linear=True)
def bmm_mat2(grad, input):
    return torch.bmm(input.mH, grad)


@backward(torch.mv, wrt="input", cast_to_grad="vec", linear=True)
def mv_input(grad, vec):
    return torch.outer(grad, conj(vec))


@backward(torch.mv, wrt="vec", cast_to_grad="input", linear=True)
def mv_vec(grad, input):
    return input.mH @ grad


# Products of two vectors.


@backward(torch.dot, wrt="input", linear=True)
def dot_input(grad, tensor):
    return grad * conj(tensor)


@backward(torch.dot, wrt="tensor", linear=True)
def dot_tensor(grad, input):
    return grad * conj(input)


# vdot: y = Σ conj(a_k) b_k


@backward(torch.vdot, wrt="input", linear=True)
def vdot_input(grad, other):
    return conj(grad) * other


@backward(torch.vdot, wrt="other", linear=True)
def vdot_other(grad, input):
    return grad * input


@backward(torch.linalg.vecdot, wrt="x", linear=True)
def vecdot_x(grad, x_shape, y, dim):
    return _as_long(conj(grad).unsqueeze(dim) * y, x_shape, dim)


@backward(torch.linalg.vecdot, wrt="y", linear=True)
def vecdot_y(grad, x, y_shape, dim):
    return _as_long(grad.unsqueeze(dim) * x, y_shape, dim)


def _as_long(product, shape, dim):
    """``product`` as long along the contracted ``dim`` as the operand of ``shape``: where the other has length 1, so has ``product``."""
    axis = dim if dim < 0 else dim - product.ndim
    if product.shape[axis] != 1 or -axis > len(shape):
        return product
    return product.expand([shape[axis] if d == axis else -1 for d in range(-product.ndim, 0)])


@backward(torch.outer, wrt="input", cast_to_grad="vec2", linear=True)
def outer_input(grad, vec2):
    return grad @ conj(vec2)


@backward(torch.outer, wrt="vec2", cast_to_grad="input", linear=True)
def outer_vec2(grad, input):
    return conj(input) @ grad


@decomposition(torch.inner)
def inner(input, other):
    if input.ndim == 0 or other.ndim == 0:
        return input * other
    return tensordot(input, other, [-1], [-1])


# a × b is linear in either side, and (a × b)·c = (b × c)·a = (c × a)·b


@backward(torch.linalg.cross, wrt="input", linear=True)
def cross_input(grad, other, dim):
    return torch.linalg.cross(conj(other).expand_as(grad), grad, dim=dim)


@backward(torch.linalg.cross, wrt="other", linear=True)
def cross_other(grad, input, dim):
    return torch.linalg.cross(grad, conj(input).expand_as(grad), dim=dim)


@decomposition(torch.cross)
def cross(input, other, dim):
    if dim is None:  # the first axis of length 3
        dim = next((d for d, size in enumerate(input.shape) if size == 3), -1)
    return torch.linalg.cross(input, other, dim=dim)


# linear: Y = X Wᵀ + b, for every row of X


@backward(torch._C._nn.linear, wrt="input", cast_to_grad="weight", linear=[("input", "bias"), ("weight", "bias")])
def linear_input(grad, weight):
    weight = conj(weight)
    return grad @ weight if weight.ndim > 1 else grad.unsqueeze(-1) * weight


@backward(torch._C._nn.linear, wrt="weight", cast_to_grad="input")
def linear_weight(grad, input, weight_shape):
    input = conj(input)
    if len(weight_shape) == 1:
        return grad.flatten() @ rows(input)
    return rows(grad).mT @ rows(input)


passes_through(torch._C._nn.linear, torch.bilinear, wrt="bias")


# bilinear: y_o = Σ_ij a_i W_oij b_j + bias_o, for every row of a and b


@backward(torch.bilinear, wrt="input1", linear=[("input1", "bias"), ("input2", "bias"), ("weight", "bias")])
def bilinear_input1(grad, input2, weight):
    return (_weighted(grad, weight) @ conj(input2).unsqueeze(-1)).squeeze(-1)


@backward(torch.bilinear, wrt="input2")
def bilinear_input2(grad, input1, weight):
    return (conj(input1).unsqueeze(-2) @ _weighted(grad, weight)).squeeze(-2)


@backward(torch.bilinear, wrt="weight")
def bilinear_weight(grad, input1, input2):
    pairs = conj(input1).unsqueeze(-1) * conj(input2).unsqueeze(-2)
    return tensordot(rows(grad), pairs.reshape(math.prod(grad.shape[:-1]), *pairs.shape[-2:]), [0], [0])


def _weighted(grad, weight):
    """Σ_o grad_o conj(W_oij)"""
    return tensordot(grad, conj(weight), [-1], [0])


# addmm and its relatives: beta input + alpha (product). With beta = 0 the input is not read: nan and inf in it have no effect.


@backward(torch.addmm, torch.addmv, torch.addr, torch.addbmm, torch.baddbmm, wrt="input", symmetric=True)
def addmm_input(grad, beta):
    return torch.zeros_like(grad) if beta == 0 else scaled(grad, beta)


@backward(torch.addmm, wrt="mat1", cast_to_grad="mat2", linear=[("input", "mat1"), ("input", "mat2")])
def addmm_mat1(grad, mat2, alpha):
    return scaled(grad @ mat2.mH, alpha)


@backward(torch.addmm, wrt="mat2", cast_to_grad="mat1")
def addmm_mat2(grad, mat1, alpha):
    return scaled(mat1.mH @ grad, alpha)


@backward(torch.addmv, wrt="mat", cast_to_grad="vec", linear=[("input", "mat"), ("input", "vec")])
def addmv_mat(grad, vec, alpha):
    return scaled(torch.outer(grad, conj(vec)), alpha)


@backward(torch.addmv, wrt="vec", cast_to_grad="mat")
def addmv_vec(grad, mat, alpha):
    return scaled(mat.mH @ grad, alpha)


@backward(torch.addr, wrt="vec1", cast_to_grad="vec2", linear=[("input", "vec1"), ("input", "vec2")])
def addr_vec1(grad, vec2, alpha):
    return scaled(grad @ conj(vec2), alpha)


@backward(torch.addr, wrt="vec2", cast_to_grad="vec1")
def addr_vec2(grad, vec1, alpha):
    return scaled(conj(vec1) @ grad, alpha)


# addbmm sums the products of all batches, so that each has the same gradient, which broadcasts over them.


@backward(
    torch.addbmm, torch.baddbmm, wrt="batch1", cast_to_grad="batch2", linear=[("input", "batch1"), ("input", "batch2")]
)
def addbmm_batch1(grad, batch2, alpha):
    return scaled(grad @ batch2.mH, alpha)


@backward(torch.addbmm, torch.baddbmm, wrt="batch2", cast_to_grad="batch1")
def addbmm_batch2(grad, batch1, alpha):
    return scaled(batch1.mH @ grad, alpha)


# Products of many matrices.


@decomposition(torch._C._VariableFunctions.chain_matmul)
def chain_matmul(matrices):
    return torch.linalg.multi_dot(matrices) if len(matrices) > 1 else matrices[0]


@decomposition(torch.linalg.multi_dot)
def multi_dot(tensors):
    sizes = [
        1 if tensors[0].ndim == 1 else tensors[0].shape[0],
        *(t.shape[0 if t.ndim == 1 else -2] for t in tensors[1:]),
    ]
    sizes.append(1 if tensors[-1].ndim == 1 else tensors[-1].shape[1])
    split = cheapest_splits(sizes)

    def product(first, last):
        if first == last:
            return tensors[first]
        middle = split[first, last]
        return product(first, middle) @ product(middle + 1, last)

    return product(0, len(tensors) - 1)


def cheapest_splits(sizes):
    """Where to split each run of a chain of matrices of ``sizes[k] × sizes[k + 1]`` for the fewest multiplications.

    Of splits that cost the same torch takes the first, in a chain of three matrices the second.
    """
    tie = -1 if len(sizes) == 4 else 1
    cost = {(k, k): 0 for k in range(len(sizes) - 1)}
    split = {}
    for length in range(1, len(sizes) - 1):
        for i in range(len(sizes) - 1 - length):
            j = i + length
            cost[i, j], split[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], tie * k) for k in range(i, j)
            )
            split[i, j] *= tie
    return split


@decomposition(torch.linalg.matrix_power)
def matrix_power(input, n):
    if n == 0:
        return input.clone().copy_(torch.eye(input.shape[-1], dtype=input.dtype, device=input.device))
    base = torch.linalg.inv(input) if n < 0 else input
    result, n = None, abs(n)
    if n == 3:
        return base @ base @ base
    while True:  # by squaring, lowest bit first
        if n & 1:
            result = base if result is None else result @ base
        n >>= 1
        if n == 0:
            return result if result is not input else input.clone()
        base = base @ base


@backward(torch.linalg.matrix_exp, wrt="input")
def matrix_exp(grad, input):
    # exp of [[A, E], [0, A]] has the derivative of exp at A in direction E in its corner; the adjoint is that of Aᴴ.
    adjoint = input.mH
    n = input.shape[-1]
    upper = torch.cat([adjoint, grad], -1)
    lower = torch.cat([torch.zeros_like(grad), adjoint], -1)
    return torch.linalg.matrix_exp(torch.cat([upper, lower], -2))[..., :n, n:]


# tensordot: contracted axes are taken pairwise, the free ones of the first come before those of the second


@backward(tensordot, wrt="input", cast_to_grad="other", linear=True)
def tensordot_input(grad, input_shape, other, dims_self, dims_other):
    free = len(input_shape) - len(dims_self)
    return _uncontracted(grad, range(free, grad.ndim), other, dims_other, input_shape, dims_self)


@backward(tensordot, wrt="other", cast_to_grad="input", linear=True)
def tensordot_other(grad, input, other_shape, dims_self, dims_other):
    free = input.ndim - len(dims_self)
    return _uncontracted(grad, range(free), input, dims_self, other_shape, dims_other)


def _uncontracted(grad, grad_axes, other, other_dims, shape, dims):
    """The gradient of an operand of ``shape``, contracted along ``dims``: ``grad`` times ``other`` over free axes."""
    partner = {d % other.ndim: axis % len(shape) for d, axis in zip(other_dims, dims, strict=True)}
    free = [d for d in range(other.ndim) if d not in partner]
    product = tensordot(grad, conj(other), list(grad_axes), free)
    # The axes of the product: this operand's free ones, then its contracted ones in the order of the other operand.
    contracted = set(partner.values())
    order = [d for d in range(len(shape)) if d not in contracted] + [partner[d] for d in sorted(partner)]
    product = product.permute([order.index(d) for d in range(len(shape))])
    # A contracted axis of length 1 met a longer one: the sum ran over the longer one alone.
    return product.expand([s if s != 1 else have for s, have in zip(shape, product.shape, strict=True)])


# kron: with every axis split in two, (a ⊗ b)[i, k] = a[i] b[k]


@backward(torch.kron, wrt="input", cast_to_grad="other", linear=True)
def kron_input(grad, input_shape, other):
    return _kron_factor(grad, input_shape, other, other.shape, 1).reshape(input_shape)


@backward(torch.kron, wrt="other", cast_to_grad="input", linear=True)
def kron_other(grad, input, other_shape):
    return _kron_factor(grad, input.shape, input, other_shape, 0).reshape(other_shape)


def _kron_factor(grad, input_shape, factor, other_shape, side):
    """``grad`` contracted with ``factor``, which is the first (``side`` 0) or the second of the two."""
    rank = grad.ndim
    pairs = [(*((1,) * (rank - len(shape))), *shape) for shape in (input_shape, other_shape)]
    split = grad.reshape([size for pair in zip(*pairs, strict=True) for size in pair])
    factor = conj(factor).reshape(pairs[side])
    return tensordot(split, factor, list(range(side, 2 * rank, 2)), list(range(rank)))
