"""Running sums, products and extremes along a dimension, differences and integrals of samples."""

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.conjugate import conj
from ops_registry.shared.picking import add_at
from ops_registry.shared.precision import HALF, wide
from ops_registry.shared.products import divides_well, exclusive_cumprod
from ops_registry.shared.recorded import recorded

aten = torch.ops.aten


@backward(torch.cumsum, linear=True)
def cumsum(grad, dim):
    return grad if grad.dim() == 0 else grad.flip(dim).cumsum(dim).flip(dim)


def backward_recurrence(term, factor, dim):
    """``s`` with ``s[j] = term[j] + factor[j] * s[j + 1]``; ``factor`` is shorter by one.

    Each round doubles the distance over which ``s`` is complete: the number of rounds is logarithmic, and nothing is divided.
    """
    size, step = term.shape[dim], 1
    while step < size:
        rest = size - step
        ahead = term.narrow(dim, 0, rest) + factor * term.narrow(dim, step, rest)
        term = torch.cat((ahead, term.narrow(dim, rest, step)), dim)
        if step < rest:
            factor = factor.narrow(dim, 0, rest - step) * factor.narrow(dim, step, rest - step)
        step *= 2
    return term


@backward(torch.cumprod)
def cumprod(grad, input, input_shape, result, dim, dtype):
    # With y_k = x_0 … x_k:  sum over k >= j of g_k dy_k/dx_j = (x_0 … x_{j-1}) s_j,  s_j = g_j + x_{j+1} s_{j+1}.
    if not input_shape or input_shape[dim] <= 1:
        return grad
    grad, factors = wide(grad), conj(wide(input if dtype is None else input.to(dtype)))
    if not recorded() and divides_well(result):
        return cumsum(grad * conj(result), dim) / factors
    following = factors.narrow(dim, 1, input_shape[dim] - 1)
    return exclusive_cumprod(factors, dim) * backward_recurrence(grad, following, dim)


@backward(torch.logcumsumexp)
def logcumsumexp(grad, input, input_shape, result, dim):
    # sum over k >= j of g_k exp(x_j - y_k) = exp(x_j - y_j) s_j,  s_j = g_j + exp(y_j - y_{j+1}) s_{j+1}.
    # As y grows along dim, no exponential exceeds 1. Where y is still -inf nothing flows.
    if input.dtype in HALF:  # a rounding error in the level would become a factor
        input = input.float()
        result = input.logcumsumexp(dim)
    level = result.masked_fill(result == -torch.inf, 0)
    weight = conj((input - level).exp())
    if not input_shape or input_shape[dim] <= 1:
        return weight * grad
    rest = input_shape[dim] - 1
    decay = conj((result.narrow(dim, 0, rest) - level.narrow(dim, 1, rest)).exp())
    return weight * backward_recurrence(grad, decay, dim)


@backward(torch.cummax, torch.cummin)
def running_extreme(grad, input_shape, indices, dim):
    return add_at(grad, indices, input_shape, dim)


def differences(input, n, dim, prepend, append):
    """``torch.diff`` of order 1 or more: all of its tensors have a derivative."""
    if has_torch_function((input, prepend, append)):
        return handle_torch_function(differences, (input, prepend, append), input, n, dim, prepend, append)
    return torch.diff(input, n, dim, prepend=prepend, append=append)


@decomposition(torch.diff)
def diff(input, n, dim, prepend, append):
    # Of order 0 it is the input alone: the result must not wait for a gradient that prepend and append never get.
    return input.clone() if n == 0 else differences(input, n, dim, prepend, append)


@backward(differences, wrt=("input", "prepend", "append"), linear=[("input", "prepend", "append")])
def differences_gradients(grad, input_shape, n, dim, prepend_shape, append_shape, needs):
    # The transpose of one difference is minus the difference of the cotangent between two zeros.
    lengths = [shape[dim] if shape else 0 for shape in (prepend_shape, input_shape, append_shape)]
    n = min(n, lengths[0] + lengths[1] + lengths[2])
    dim %= len(input_shape)
    zeros = grad.new_zeros((*grad.shape[:dim], n, *grad.shape[dim + 1 :]))
    whole = torch.diff(grad, n, dim, prepend=zeros, append=zeros)
    grad_prepend, grad_input, grad_append = (-whole if n % 2 else whole).split(lengths, dim)
    return (
        grad_input if needs.input else None,
        grad_prepend if needs.prepend else None,
        grad_append if needs.append else None,
    )


def _pair_sums(y, dim):
    """Each sample plus the next."""
    size = y.shape[dim]
    return y.narrow(dim, 0, size - 1) + y.narrow(dim, 1, size - 1)


def _spacings(y, x, dim):
    """Distances between the sample points ``x``, shaped so that they broadcast against the samples ``y``."""
    if x.dim() == 1:
        if x.shape[0] != y.shape[dim]:
            raise RuntimeError(f"there are {x.shape[0]} values of x for {y.shape[dim]} samples along dimension {dim}")
        shape = [1] * y.dim()
        shape[dim] = x.shape[0]
        x = x.reshape(shape)
    elif x.dim() < y.dim():
        x = x.reshape((1,) * (y.dim() - x.dim()) + tuple(x.shape))
    return torch.diff(x, dim=dim)


@backward(aten.trapezoid.dx, aten.trapz.dx, wrt="y", linear=True)
def trapezoid(grad, y_shape, dx, dim):
    # The inner samples count whole, the first and the last half.
    size = y_shape[dim]
    weights = grad.new_full((size,), dx)
    if size > 0:
        weights[0] -= dx / 2
        weights[-1] -= dx / 2
    return grad.unsqueeze(dim) * weights.reshape([size] + [1] * ((-dim - 1) % len(y_shape)))


@decomposition(aten.trapezoid.x)
@decomposition(aten.trapz.x)
def trapezoid_at(y, x, dim):
    if y.shape[dim] == 0:
        return y.sum(dim)
    return (_pair_sums(y, dim) * _spacings(y, x, dim)).sum(dim) / 2


@decomposition(aten.cumulative_trapezoid.dx)
def cumulative_trapezoid(y, dx, dim):
    if y.shape[dim] == 0:
        return y.cumsum(dim)
    return (_pair_sums(y, dim) * (dx / 2)).cumsum(dim)


@decomposition(aten.cumulative_trapezoid.x)
def cumulative_trapezoid_at(y, x, dim):
    if y.shape[dim] == 0:
        return y.cumsum(dim)
    return (_pair_sums(y, dim) * _spacings(y, x, dim)).cumsum(dim) / 2


def _overload(packet):
    return lambda *args, **kwargs: packet.x if len(args) > 1 or "x" in kwargs else packet.dx


overloaded(torch.trapezoid)(_overload(aten.trapezoid))
overloaded(torch.trapz)(_overload(aten.trapz))
overloaded(torch.cumulative_trapezoid)(_overload(aten.cumulative_trapezoid))


def _slope(y, steps, dim, edge_order):
    """The slope of the parabola through each sample and its neighbours; at the ends that of a line, or (order 2) of a parabola.

    ``steps`` holds the distances between samples, or is one number, also as a tensor, where they are all the same. The order of the
    operations is torch's, so that values are the same to the bit.
    """
    size = y.shape[dim]
    uniform = not isinstance(steps, torch.Tensor) or steps.dim() == 0
    if uniform:
        inner = (y.narrow(dim, 2, size - 2) - y.narrow(dim, 0, size - 2)) / steps / 2
    else:
        steps = steps.reshape([-1 if d == dim else 1 for d in range(y.dim())])
        before, after = steps.narrow(dim, 0, size - 2), steps.narrow(dim, 1, size - 2)
        both = before + after
        slopes = -after / (before * both), (after - before) / (before * after), before / (after * both)
        inner = _three(y, dim, 0, slopes)
    if edge_order == 1:
        ends = (y.narrow(dim, k + 1, 1) - y.narrow(dim, k, 1) for k in (0, size - 2))
        first, last = (
            line / (steps if uniform else steps.select(dim, k).squeeze()) for line, k in zip(ends, (0, -1), strict=True)
        )
    elif uniform:
        first, last = _three(y, dim, 0, (-1.5, 2, -0.5)) / steps, _three(y, dim, size - 3, (0.5, -2, 1.5)) / steps
    else:
        a, b = before.select(dim, 0).squeeze(), after.select(dim, 0).squeeze()
        first = _three(y, dim, 0, (-(2 * a + b) / (a * (a + b)), (a + b) / (a * b), -a / (b * (a + b))))
        a, b = before.select(dim, -1).squeeze(), after.select(dim, -1).squeeze()
        last = _three(y, dim, size - 3, (b / (a * (a + b)), -(a + b) / (a * b), (2 * b + a) / (b * (a + b))))
    return torch.cat((first, inner, last), dim)


def _three(y, dim, start, weights):
    """The weighted sums of three neighbouring samples, the first of them at ``start``, one sum for each weight."""
    length = weights[0].shape[dim] if isinstance(weights[0], torch.Tensor) and weights[0].dim() else 1
    x, y, z = (y.narrow(dim, start + k, length) * w for k, w in enumerate(weights))
    return x + y + z


@decomposition(torch.gradient)
def gradient(input, spacing, dim, edge_order):
    dims = list(dim) if isinstance(dim, list | tuple) else list(range(input.dim())) if dim is None else [dim]
    if not isinstance(spacing, list | tuple):
        spacing = [1 if spacing is None else spacing] * len(dims)
    if len({d % max(1, input.dim()) for d in dims}) < len(dims):
        raise UnsupportedCallError(
            f"gradient: the dimensions {dims} of an input of {input.dim()} name one of them twice"
        )
    if len(spacing) != len(dims) or edge_order not in (1, 2) or any(input.shape[d] <= edge_order for d in dims):
        raise UnsupportedCallError(
            f"gradient: wants one spacing for each of {len(dims)} dimensions (got {len(spacing)}), edge_order 1 or 2 "
            f"(got {edge_order}), and more samples than edge_order along each dimension (input: {tuple(input.shape)})"
        )
    slopes = []
    for d, space in zip(dims, spacing, strict=True):
        if isinstance(space, torch.Tensor):
            if space.dim() == 1 and space.shape[0] != input.shape[d]:
                raise UnsupportedCallError(
                    f"gradient: {space.shape[0]} coordinates are given for the {input.shape[d]} samples along dimension {d}: one for each"
                )
            space = torch.diff(space) if space.dim() == 1 else space
        slopes.append(_slope(input, space, d % input.dim(), edge_order))
    return slopes
