"""Sum, mean, product or extreme of each segment of consecutive elements along an axis."""

import math

import torch

from ops_registry.registry import backward
from ops_registry.shared.products import exclusive_cumprod
from ops_registry.shared.recorded import recorded


@backward(torch.segment_reduce)
def segment_reduce(grad, data, reduce, lengths, offsets, axis, initial, result):
    if recorded():  # torch's kernel cannot be differentiated
        return differentiable_gradient(grad, data, reduce, lengths, offsets, axis, initial, result)

    def kernel(grad):
        segment_reduce_backward = torch.ops.aten._segment_reduce_backward
        segments = {"lengths": lengths, "offsets": offsets}
        return segment_reduce_backward(grad, result, data, reduce, **segments, axis=axis, initial=initial)

    if reduce in ("sum", "mean", "prod"):
        return kernel(grad)
    # torch 2.13 shares a positive gradient among those that tie, and gives a negative one to each of them.
    return kernel(grad.clamp_min(0)) - kernel((-grad).clamp_min(0))


def differentiable_gradient(grad, data, reduce, lengths, offsets, axis, initial, result):
    """The gradient of ``data``, from the rows of each segment side by side: (segments, longest segment, …)."""
    axis %= data.dim()
    index, within = members(data.shape, lengths, offsets, axis)
    rest = data.shape[axis + 1 :]
    rows = data.reshape(math.prod(data.shape[: axis + 1]), *rest)
    inside = within.reshape(*within.shape, *[1] * len(rest))
    grad, result = (value.reshape(within.shape[0], 1, *rest) for value in (grad, result))
    slope = SLOPES[reduce](rows[index], inside, result)
    if reduce == "prod" and initial is not None:
        slope = slope * initial
    grad_rows = (grad * slope)[within]
    return torch.zeros_like(rows).index_add(0, index[within], grad_rows).reshape(data.shape)


# The derivative of a segment's result to each of its values; what is not ``inside`` a segment is left out afterwards.


def sum_slope(values, inside, result):
    return inside


def mean_slope(values, inside, result):
    return inside / inside.sum(1, keepdim=True).clamp_min(1).to(result.dtype)


def prod_slope(values, inside, result):
    factors = torch.where(inside, values, 1)
    return exclusive_cumprod(factors, 1) * exclusive_cumprod(factors.flip(1), 1).flip(1)


def extreme_slope(values, inside, result):
    # Ties share evenly; a nan counts as extreme.
    ties = inside & ((values == result) | (values != values))
    return ties / ties.sum(1, keepdim=True).clamp_min(1).to(result.dtype)


SLOPES = {"sum": sum_slope, "mean": mean_slope, "prod": prod_slope, "max": extreme_slope, "min": extreme_slope}


def members(shape, lengths, offsets, axis):
    """The rows of each segment, (segments, longest segment), and a mask of those entries that are filled.

    The dimensions before ``axis`` and ``axis`` itself are counted as one, row by row.
    """
    if offsets is None:
        offsets = torch.cat((torch.zeros_like(lengths[..., :1]), lengths.cumsum(-1)), -1)
    size = shape[axis]
    first = torch.arange(math.prod(shape[:axis]), device=offsets.device).unsqueeze(1) * size
    start, end = (
        (part.reshape(first.shape[0], -1) + first).reshape(-1, 1) for part in (offsets[..., :-1], offsets[..., 1:])
    )
    longest = int((end - start).max()) if start.numel() else 0
    index = start + torch.arange(longest, device=start.device)
    within = index < end
    return torch.where(within, index, 0), within
