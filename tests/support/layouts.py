"""Tensors that lie otherwise in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from support.checking import Make
from tracer.checks.leaves import foreign, non_contiguous


def transposed(make: Make) -> Make:
    """The same tensor with its last two axes swapped in memory: not contiguous."""
    return lambda device: make(device).mT.contiguous().mT


# The layouts of a plain tensor. Where memory around its elements is not its own, that holds what nobody may read.


def behind_others(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the middle of a larger tensor, at an offset and contiguous."""
    around = foreign(tensor.reshape(-1))
    return torch.cat((around, tensor.reshape(-1), around)).narrow(0, tensor.numel(), tensor.numel()).view(tensor.shape)


def every_second(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps."""
    return torch.stack((foreign(tensor), tensor), -1)[..., 1]


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the axes in reverse order in memory, without gaps."""
    axes = list(range(tensor.dim()))[::-1]
    return tensor.permute(axes).contiguous().permute(axes)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the second axis innermost in memory."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.dim() > 2 else turned(tensor)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The first slice of the last axis, repeated without memory of its own."""
    return tensor[..., :1].expand(tensor.shape) if tensor.dim() else tensor


def expanded_from_one(tensor: torch.Tensor) -> torch.Tensor:
    """The first slice of the first axis, repeated without memory of its own."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() else tensor


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "behind others": behind_others,
    "every second": every_second,
    "turned": turned,
    "channels last": channels_last,
    "with gaps and turned": non_contiguous,
    "expanded along the last axis": expanded,
    "expanded along the first axis": expanded_from_one,
}
