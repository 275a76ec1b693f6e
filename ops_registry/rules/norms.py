"""Norms of vectors and matrices, and distances. The gradient of a norm at the zero vector is 0."""

import torch

from ops_registry.registry import as_one, backward, decomposition, overloaded
from ops_registry.shared.dimensions import restore_dims
from ops_registry.shared.masks import share_among_ties
from ops_registry.shared.precision import HALF, wide
from ops_registry.shared.recorded import recorded

aten = torch.ops.aten


# n = (sum |x|^p)^(1/p)  gives  dn = sgn(x) (|x| / n)^(p - 1). One formula for each kind of order p, with reduced dimensions kept.


def _order_zero(grad, x, norm, p, dim):
    return None  # the number of elements other than 0


def _order_one(grad, x, norm, p, dim):
    return grad * x.sgn()


def _order_two(grad, x, norm, p, dim):
    # A zero vector gets 0. There is no second derivative there: the division makes it nan, as in torch, and not a wrong 0.
    return grad * (x / norm).masked_fill(norm == 0, 0)


def _infinite_order(grad, x, norm, p, dim):
    size = x.abs()
    ties = (size == norm) | (size != size)
    return share_among_ties(grad, ties, dim) * x.sgn()


def _whole_order(grad, x, norm, p, dim):
    x, norm = wide(x), wide(norm).masked_fill(norm == 0, 1)
    return x * x.abs().pow(p - 2) * (grad / norm.pow(p - 1))  # has all its derivatives at 0


def _any_order(grad, x, norm, p, dim):
    x, norm_or_one = wide(x), wide(norm).masked_fill(norm == 0, 1)
    # A zero element has ratio 1, whose powers and their derivatives are finite, and sgn(0) = 0.
    size = torch.where(x == 0, norm_or_one, x.abs())
    power = (norm / size).pow(1 - p) if p < 0 else (size / norm_or_one).pow(p - 1)
    return grad * x.sgn() * power


_SPECIAL_ORDERS = {
    0: _order_zero,
    1: _order_one,
    2: _order_two,
    torch.inf: _infinite_order,
    -torch.inf: _infinite_order,
}


def norm_gradient(grad, x, norm, p, dim):
    """The gradient of ``x`` for the norm of order ``p`` along ``dim``, where ``grad`` and ``norm`` broadcast to ``x``."""
    formula = _SPECIAL_ORDERS.get(float(p)) or (_whole_order if p > 2 and p % 1 == 0 else _any_order)
    return formula(grad, x, norm, p, dim)


@backward(torch.linalg.vector_norm)
def linalg_vector_norm(grad, input, input_shape, result, ord, dim, keepdim):
    if dim is not None:
        grad = restore_dims(grad, input_shape, dim, keepdim)
        result = restore_dims(result, input_shape, dim, keepdim)
    return norm_gradient(grad, input, result, ord, dim)


@backward(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype)
def norm_along_dim(grad, input, input_shape, result, p, dim, keepdim):
    return linalg_vector_norm(grad, input, input_shape, result, 2 if p is None else p, dim, keepdim)


@overloaded(aten.norm, alone=True)  # torch.norm is a Python function
def choose_norm(input, p=2, dim=None, keepdim=False, *, dtype=None):
    if dim is None:
        return aten.norm.Scalar if dtype is None else aten.norm.ScalarOpt_dtype
    return aten.norm.ScalarOpt_dim if dtype is None else aten.norm.ScalarOpt_dim_dtype


@backward(aten.norm.Scalar, aten.norm.ScalarOpt_dtype)
def norm_of_all(grad, input, result, p):
    return norm_gradient(grad, input, result, 2 if p is None else p, None)


def _largest(sizes, dim, keepdim):
    """The largest of numbers that are not negative; 0 of none, which is their sum."""
    return sizes.amax(dim, keepdim) if sizes.shape[dim] else sizes.sum(dim, keepdim)


@decomposition(torch.linalg.matrix_norm)
def linalg_matrix_norm(input, ord, dim, keepdim, dtype):
    ord = "fro" if ord is None else ord
    rows, columns = (d % input.dim() for d in dim)
    if rows == columns:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different, not {tuple(dim)}")
    if ord == "fro":
        return torch.linalg.vector_norm(input, 2, (rows, columns), keepdim, dtype=dtype)
    if dtype is not None:
        input = input.to(dtype)
    if ord in (1, -1, torch.inf, -torch.inf):
        inner, outer = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = torch.linalg.vector_norm(input, 1, inner, True)
        found = _largest(sums, outer, True) if ord > 0 else sums.amin(outer, True)
        return found if keepdim else found.squeeze((rows, columns))
    if ord not in ("nuc", 2, -2):
        raise RuntimeError(f"linalg.matrix_norm: order {ord!r} not supported")
    singular = torch.linalg.svdvals(input.movedim((rows, columns), (-2, -1)))
    found = singular.sum(-1) if ord == "nuc" else _largest(singular, -1, False) if ord > 0 else singular.amin(-1)
    if keepdim:
        for d in sorted((rows, columns)):
            found = found.unsqueeze(d)
    return found


@decomposition(torch.linalg.norm)
def linalg_norm(input, ord, dim, keepdim, dtype):
    dims = dim if dim is None or isinstance(dim, list | tuple) else (dim,)
    if ord is None or (not isinstance(ord, str) and (len(dims) if dims is not None else input.dim()) == 1):
        return torch.linalg.vector_norm(input, 2 if ord is None else ord, dims, keepdim, dtype=dtype)
    if dims is None and input.dim() != 2:
        raise RuntimeError(f"linalg.norm: with ord and without dim, the input has rank 1 or 2, not {input.dim()}")
    return torch.linalg.matrix_norm(input, ord, (0, 1) if dims is None else dims, keepdim, dtype=dtype)


@decomposition(torch.frobenius_norm)
def frobenius_norm(input, dim, keepdim):
    return torch.linalg.vector_norm(input, 2, dim, keepdim)


@decomposition(aten.nuclear_norm.default)
def nuclear_norm(input, keepdim):
    return torch.linalg.matrix_norm(input, "nuc", (-2, -1), keepdim)


@decomposition(aten.nuclear_norm.dim)
def nuclear_norm_along_dim(input, dim, keepdim):
    return torch.linalg.matrix_norm(input, "nuc", dim, keepdim)


@overloaded(torch.nuclear_norm)
def nuclear_norm_overload(input, dim=False, keepdim=False):
    return aten.nuclear_norm.default if isinstance(dim, bool) else aten.nuclear_norm.dim


@backward(torch.dist, wrt="input")
def dist_input(grad, input, other, result, p):
    return norm_gradient(grad, input - other, result, p, None)


@backward(torch.dist, wrt="other")
def dist_other(grad, input, other, result, p):
    return norm_gradient(grad, other - input, result, p, None)


@backward(torch.renorm)
def renorm(grad, input, input_shape, p, dim, maxnorm):
    # y = x s(n), s = maxnorm / (n + eps) where the norm n of a slice is too large:  dy = s dx + x s'(n) dn
    others = tuple(d for d in range(len(input_shape)) if d != dim % len(input_shape))
    input = wide(input)
    norm = torch.linalg.vector_norm(input, p, others, True)
    inverse = torch.where(norm > maxnorm, 1 / (norm + 1e-7), 0)
    scaled = torch.where(norm > maxnorm, maxnorm * inverse, 1)
    through_norm = (grad * input.conj()).real.sum(others, True) * (-maxnorm * inverse * inverse)
    through = norm_gradient(through_norm, input, norm, p, others)
    return grad * scaled if through is None else grad * scaled + through


def _pair_gradients(grad, difference, p, distance):
    """The gradient of the first point of each pair, from the difference of the two points."""
    if p == torch.inf:  # here the coordinates that tie do not share, as in torch
        return grad.unsqueeze(-1) * difference.sgn() * (difference.abs() == distance.unsqueeze(-1))
    if p == 2:  # the distance of a point to itself is always 0: nothing flows, in any order
        return difference * (grad / distance.masked_fill(distance == 0, torch.inf)).unsqueeze(-1)
    return norm_gradient(grad.unsqueeze(-1), difference, distance.unsqueeze(-1), p, -1)


def _multiplies_out(p, compute_mode, rows, columns):
    """Whether torch multiplies out ``|a - b|^2``: then the gradient may do so too, without losing precision."""
    if p != 2:
        return False
    if compute_mode in (None, 0, "use_mm_for_euclid_dist_if_necessary"):
        return rows > 25 or columns > 25
    return compute_mode in (1, "use_mm_for_euclid_dist")


@backward(torch.cdist, aten._cdist_forward, wrt=("x1", "x2"))
def cdist(grad, x1, x2, p, compute_mode, result, result_shape, needs):
    if p == 0 or 0 in result_shape:
        return None, None
    if _multiplies_out(p, compute_mode, *result_shape[-2:]):
        weight = grad / result.masked_fill(result == 0, torch.inf)
        return (
            x1 * weight.sum(-1).unsqueeze(-1) - weight @ x2 if needs.x1 else None,
            x2 * weight.sum(-2).unsqueeze(-1) - weight.mT @ x1 if needs.x2 else None,
        )
    if recorded():  # to be differentiated again, the gradient has to be made of differentiable parts
        pairs = _pair_gradients(grad, x1.unsqueeze(-2) - x2.unsqueeze(-3), p, result)
        return pairs.sum(-2) if needs.x1 else None, -pairs.sum(-3) if needs.x2 else None
    kernel = torch.ops.aten._cdist_backward
    grad_x1 = kernel(grad.contiguous(), x1, x2, p, result) if needs.x1 else None
    grad_x2 = kernel(grad.mT.contiguous(), x2, x1, p, result.mT.contiguous()) if needs.x2 else None
    return grad_x1, grad_x2


@backward(torch.pdist, aten._pdist_forward)
def pdist(grad, input, p, result, result_shape):
    if p == 0 or 0 in result_shape:
        return None
    if not recorded():  # this kernel, too, is not differentiable
        return torch.ops.aten._pdist_backward(grad.contiguous(), input.contiguous(), p, result)
    first, second = torch.triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    pairs = _pair_gradients(grad, input[first] - input[second], p, result)
    return torch.zeros_like(input).index_add(0, first, pairs).index_add(0, second, -pairs)


@decomposition(torch.norm_except_dim)
def norm_except_dim(v, pow, dim):
    if dim == -1:  # no dimension is left out
        return torch.linalg.vector_norm(v, pow)
    v.size(dim)  # raises, as in torch, where there is no such dimension
    others = tuple(d for d in range(v.dim()) if d != dim % v.dim())
    if not others:  # an empty dim would mean all dimensions
        return v.abs()
    return torch.linalg.vector_norm(v, pow, others, True)


@decomposition(torch.pairwise_distance)
def pairwise_distance(x1, x2, p, eps, keepdim):
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


@decomposition(torch.cosine_similarity)
def cosine_similarity(x1, x2, dim, eps):
    def unit(x):
        return x / torch.linalg.vector_norm(x, 2, dim, True).clamp_min(eps)

    x1, x2 = torch.broadcast_tensors(x1, x2)
    return (unit(x1) * unit(x2)).sum(dim)


# weight_norm: y = g u with u = v / |v|, the length taken over all dimensions but dim. As one call where torch has a kernel for it.


def is_fused(v, g, dim):
    """Whether torch's kernel serves: it takes the first and the last dimension, a length for each, and crashes on nothing to normalise."""
    shape = v.shape
    return len(shape) > 0 and dim in (0, len(shape) - 1) and g.numel() == shape[dim] and 0 not in shape


@decomposition(torch._weight_norm)
def weight_norm(v, g, dim):
    fused = is_fused(v, g, dim)
    if fused and v.dtype in HALF:  # the kernel computes in float32
        return aten._weight_norm_interface(v.contiguous(), g.contiguous(), dim)[0]
    norm = torch.norm_except_dim(v, 2, dim)
    if fused and g.shape != norm.shape:
        g = g.reshape(norm.shape)
    return v * (g / norm)


def forward_weight_norm(v, g, dim):
    dtype = v.dtype
    if not is_fused(v, g, dim) or dtype != g.dtype or dtype.is_complex:
        return None
    result, norm = torch._weight_norm_interface(v.contiguous(), g.contiguous(), dim)
    return result, {"norm": norm}


@as_one(torch._weight_norm, wrt=("v", "g"), forward=forward_weight_norm)
def weight_norm_as_one(grad, v, g, dim, norm, needs):
    if recorded():
        return weight_norm_gradients(grad, v, g, dim, needs)
    return aten._weight_norm_interface_backward(grad.contiguous(), v.contiguous(), g.contiguous(), norm, dim)


@backward(aten._weight_norm_interface, wrt=("v", "g"), constant_results=(1,))
def weight_norm_interface(grad, v, g, dim, result, needs):
    if recorded():
        return weight_norm_gradients(grad, v, g, dim, needs)
    grads = aten._weight_norm_interface_backward(grad.contiguous(), v, g, result[1], dim)
    return tuple(found if need else None for found, need in zip(grads, needs, strict=True))


def weight_norm_gradients(grad, v, g, dim, needs):
    """In differentiable parts, unlike the kernel. A gradient of u counts as far as it is not along u."""
    norm = torch.norm_except_dim(wide(v), 2, dim)
    unit = wide(v) / norm
    rows = (t.movedim(dim, 0).unsqueeze(-1).flatten(1) for t in (unit, wide(grad)))
    along = torch.linalg.vecdot(*rows).reshape(norm.shape)
    grad_v = (g.reshape(norm.shape) / norm) * (grad - along * unit) if needs.v else None
    return grad_v, along.reshape(g.shape) if needs.g else None
