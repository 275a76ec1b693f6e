"""Variance and standard deviation, median, mode, quantiles, counts in bins, covariance and correlation."""

import warnings

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.decisions import everywhere
from ops_registry.shared.dimensions import reduced_count, restore_dims, spread
from ops_registry.shared.masks import share_among_ties
from ops_registry.shared.picking import put_back
from ops_registry.torch_private import DisableTorchFunctionSubclass

aten = torch.ops.aten


@backward(aten.var.correction)
def var(grad, input, input_shape, dim, correction, keepdim):
    # d/dx_i of sum |x - mean|^2 / (n - c) is 2 (x_i - mean) / (n - c): what comes through the mean sums to zero.
    freedom = reduced_count(input_shape, dim) - (1 if correction is None else correction)
    scale = 2 / freedom if freedom > 0 else torch.inf
    return restore_dims(grad * scale, input_shape, dim, keepdim) * (input - input.mean(dim, keepdim=True))


@backward(aten.std.correction)
def std(grad, input, input_shape, result, dim, correction, keepdim):
    return var(std_to_var(grad, result), input, input_shape, dim, correction, keepdim)


def std_to_var(grad, std):
    """The gradient of the variance, from that of its root."""
    # Over infinity where the elements are all equal: nothing flows there, in any order.
    return grad / (2 * std.masked_fill(std == 0, torch.inf))


@backward(aten.var_mean.correction)
def var_mean(grad, input, input_shape, dim, correction, keepdim):
    grad_var, grad_mean = grad
    through_var = None if grad_var is None else var(grad_var, input, input_shape, dim, correction, keepdim)
    if grad_mean is None:
        return through_var
    through_mean = spread(grad_mean / (reduced_count(input_shape, dim) or 1), input_shape, dim, keepdim)
    return through_mean if through_var is None else through_var + through_mean


@backward(aten.std_mean.correction)
def std_mean(grad, input, input_shape, dim, correction, keepdim):
    grad_std, grad_mean = grad
    through_var = None
    if grad_std is not None:
        through_var = std_to_var(grad_std, torch.std(input, dim, correction=correction, keepdim=keepdim))
    return var_mean((through_var, grad_mean), input, input_shape, dim, correction, keepdim)


def _by_correction(op, packet):
    """Define the overloads with ``unbiased`` by those with ``correction``, of 0 or 1."""

    @decomposition(packet.default)
    def of_all(input, unbiased):
        return op(input, correction=int(unbiased))

    @decomposition(packet.dim)
    def along_dim(input, dim, unbiased, keepdim):
        return op(input, dim, correction=int(unbiased), keepdim=keepdim)

    @overloaded(op)
    def choose(*args, **named):
        if "correction" in named:
            return packet.correction
        if len(args) > 1 and isinstance(args[1], bool):
            return packet.default
        if len(args) <= 2 and "unbiased" not in named:
            return packet.correction
        return packet.dim if len(args) > 1 or "dim" in named or "axis" in named else packet.default


_by_correction(torch.var, aten.var)
_by_correction(torch.std, aten.std)
_by_correction(torch.var_mean, aten.var_mean)
_by_correction(torch.std_mean, aten.std_mean)


# Median and mode: the gradient goes to the chosen element along a dimension, and is shared among all that equal the median of all.


@backward(torch.mode, aten.median.dim, aten.nanmedian.dim)
def chosen_along_dim(grad, input_shape, indices, dim, keepdim):
    return put_back(grad, indices, input_shape, dim, keepdim)


@backward(aten.median.default)
def median_of_all(grad, input, result):
    # One nan in the input makes the result nan: then the nans are what it came from.
    return share_among_ties(grad, (input == result) | (input != input), None)


@backward(aten.nanmedian.default)
def nanmedian_of_all(grad, input, result):
    return share_among_ties(grad, (input == result) | ((input != input) & (result != result)), None)


@overloaded(torch.median)
def median(*args, **kwargs):
    return aten.median.default if len(args) + len(kwargs) == 1 else aten.median.dim


@overloaded(torch.nanmedian)
def nanmedian(*args, **kwargs):
    return aten.nanmedian.default if len(args) + len(kwargs) == 1 else aten.nanmedian.dim


# Quantiles: the rank q (n - 1) of the sorted elements, between two of them by ``interpolation``


_ROUNDED = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}


def _quantile(input, q, dim, keepdim, interpolation, ignore_nan):
    name = "nanquantile" if ignore_nan else "quantile"
    if not isinstance(q, torch.Tensor):
        q = torch.full((), q, dtype=input.dtype, device=input.device)
    _check_quantile(name, input, q)
    rank = input.dim()
    rows = input.reshape(-1) if dim is None or rank == 0 else input.movedim(dim, -1)
    ordered = rows.sort(-1)[0].unsqueeze(-2)  # (…, 1, n) against the (q, 1) of the positions
    position = _quantile_position(ordered, q.reshape(-1, 1), ignore_nan)
    found = _at_position(ordered, position, interpolation, name).squeeze(-1)  # (…, q)
    found = found.movedim(-1, 0) if q.dim() else found.squeeze(-1)
    if not keepdim:
        return found
    if dim is None or rank == 0:
        return found.reshape((*q.shape, *[1] * rank))
    return found.unsqueeze(dim if dim < 0 else dim + q.dim())


def _check_quantile(name, input, q):
    if q.dim() > 1 or q.dtype != input.dtype:
        raise UnsupportedCallError(
            f"{name}: q is a number or a vector of the dtype of the input, not {q.dtype} of rank {q.dim()}"
        )
    if not everywhere((q >= 0) & (q <= 1)):
        raise UnsupportedCallError(f"{name}: each q lies between 0 and 1")
    if input.numel() == 0:
        raise UnsupportedCallError(f"{name}: the input of shape {tuple(input.shape)} has no elements")


def _quantile_position(ordered, q, ignore_nan):
    """Where among the n ordered elements the quantile lies, from 0 to n - 1."""
    last = ordered.shape[-1] - 1
    missing = (ordered != ordered).sum(-1, keepdim=True)
    if ignore_nan:
        return q * (last - missing).clamp(min=0)
    return torch.where(missing > 0, last, q * last)  # nan is sorted last: a row with a nan gives nan


def _at_position(ordered, position, interpolation, name):
    """The element at ``position``, or a value between the two around it."""
    if interpolation in _ROUNDED:
        return torch.take_along_dim(ordered, _ROUNDED[interpolation](position).long(), -1)
    if interpolation not in ("linear", "midpoint"):
        raise UnsupportedCallError(f"{name}: unknown interpolation {interpolation!r}")
    below = position.detach().floor()
    weight = 0.5 if interpolation == "midpoint" else position - below
    around = torch.cat([below, position.detach().ceil()], -1)
    low, high = torch.take_along_dim(ordered, around.long(), -1).chunk(2, -1)
    return torch.lerp(low, high, weight)


@decomposition(torch.quantile)
def quantile(input, q, dim, keepdim, interpolation):
    return _quantile(input, q, dim, keepdim, interpolation, ignore_nan=False)


@decomposition(torch.nanquantile)
def nanquantile(input, q, dim, keepdim, interpolation):
    return _quantile(input, q, dim, keepdim, interpolation, ignore_nan=True)


@backward(torch.bincount, wrt="weights", linear=True)
def bincount_weights(grad, input):
    return grad.index_select(0, input.long())


@decomposition(torch.cov)
def cov(input, correction, fweights, aweights):
    # A row for each variable, a column for each observation; fweights count observations, aweights rate them.
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    with DisableTorchFunctionSubclass():  # torch says what does not fit; one variable is enough for that
        torch.cov(rows[:1] if input.dim() <= 2 else input, correction=0, fweights=fweights, aweights=aweights)
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    total = torch.tensor(rows.shape[1], device=rows.device) if weights is None else weights.sum()

    def weighted(samples):
        return samples if weights is None else samples * weights

    centred = rows - (weighted(rows).sum(1) / total).unsqueeze(1)
    norm = total - correction if correction else total
    if aweights is not None and correction:
        norm = total - correction * (weights * aweights).sum() / total
    if norm <= 0:
        warnings.warn("cov(): degrees of freedom is <= 0", stacklevel=2)
        norm = torch.zeros_like(norm)
    product = torch.mm(centred, weighted(centred).t().conj())
    if product.is_complex() and product.numel() == 1:  # a variance is real: what rounding leaves beside it is left out
        product = torch.complex(product.real, torch.zeros_like(product.real))
    return (product / norm).squeeze()


@decomposition(torch.corrcoef)
def corrcoef(input):
    covariance = torch.cov(input)
    if covariance.dim() == 0:
        return covariance / covariance
    deviation = covariance.diagonal().real.sqrt()
    scaled = covariance / deviation.unsqueeze(1) / deviation
    if scaled.is_complex():
        return torch.complex(scaled.real.clip(-1, 1), scaled.imag.clip(-1, 1))
    return scaled.clip(-1, 1)
