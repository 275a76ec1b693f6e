"""Sum, mean, product or extreme of each segment of consecutive elements along an axis."""

import math

import torch

from ops_registry.registry import backward
from ops_registry.rules.helpers import exclusive_cumprod


@backward(torch.segment_reduce)
def segment_reduce(grad, data, reduce, lengths, offsets, axis, initial, result):
    if not torch.is_grad_enabled():  # the kernel is as fast as torch, but cannot be differentiated

        def kernel(grad):
            back = torch.ops.aten._segment_reduce_backward
            return back(grad, result, data, reduce, lengths=lengths, offsets=offsets, axis=axis, initial=initial)

        if reduce in ("sum", "mean", "prod"):
            return kernel(grad)
        # torch 2.13 shares a positive gradient among those that tie, and gives a negative one to each of them.
        return kernel(grad.clamp_min(0)) - kernel((-grad).clamp_min(0))
    axis %= data.dim()
    index, within = members(data.shape, lengths, offsets, axis)
    rest = data.shape[axis + 1 :]
    rows = data.reshape(math.prod(data.shape[: axis + 1]), *rest)
    inside = within.reshape(*within.shape, *[1] * len(rest))

    def per_member(value):
        return value.reshape(within.shape[0], 1, *rest)

    grad, result = per_member(grad), per_member(result)
    count = inside.sum(1, keepdim=True)
    if reduce == "sum":
        slope = inside
    elif reduce == "mean":
        slope = inside / count.clamp_min(1).to(grad.dtype)
    elif reduce == "prod":
        others = torch.where(inside, rows[index], 1)
        slope = exclusive_cumprod(others, 1) * exclusive_cumprod(others.flip(1), 1).flip(1)
        slope = slope if initial is None else slope * initial
    else:  # those that are extreme share it evenly; a nan counts as extreme
        values = rows[index]
        ties = inside & ((values == result) | (values != values))
        slope = ties / ties.sum(1, keepdim=True).clamp_min(1).to(grad.dtype)
    pulls = (grad * slope)[within]
    return torch.zeros_like(rows).index_add(0, index[within], pulls).reshape(data.shape)


def members(shape, lengths, offsets, axis):
    """Of each segment the rows that belong to it, (segments, longest), and which of these entries are filled.

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
