"""Buckets: parameters whose gradients travel together, in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ops_registry.torch_private import DisableTorchFunctionSubclass, bucket_assignment
from tracer.tracked_tensor import plain_alias


class Bucket:
    """Some parameters, by their numbers, and the memory in which their gradients travel."""

    __slots__ = ("flat", "gradients", "missing", "numbers", "parameters", "sent", "sent_views", "views", "work")

    def __init__(self, numbers: Sequence[int], parameters: Sequence[torch.Tensor]) -> None:
        self.numbers = numbers
        self.parameters = parameters
        with DisableTorchFunctionSubclass():
            first = parameters[0]
            self.flat = torch.empty(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
            #: The gradient of each parameter within ``flat``, laid out as the parameter is.
            self.views = views_of(self.flat, parameters)
        self.clear()

    def clear(self) -> None:
        """Be ready for the next pass."""
        #: What has arrived for each parameter in this pass, and for how many more is to come.
        self.gradients: list[torch.Tensor | None] = [None] * len(self.numbers)
        self.missing = len(self.numbers)
        #: What travels in this pass: other memory than ``flat`` where ``.grad`` is a view of that.
        self.sent, self.sent_views = self.flat, self.views
        #: The exchange under way; None before the bucket has left.
        self.work: dist.Work | torch.futures.Future[Any] | None = None


def views_of(flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of ``flat``, of shape (n,), one after another for each parameter, with its shape; with its strides too where it is dense."""
    views, start = [], 0
    for p in parameters:
        with DisableTorchFunctionSubclass():
            part = flat[start : start + p.numel()]
            strided = not p.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(p)
            views.append(part.as_strided(p.shape, p.stride()) if strided else part.view(p.shape))
            start += p.numel()
    return views


def assign(
    parameters: Sequence[torch.Tensor], limits: Sequence[int], order: Sequence[int] | None = None
) -> list[list[int]]:
    """The numbers of the parameters of each bucket, as torch deals them out: of one dtype and device, up to ``limits`` bytes each.

    In ``order``; without one the last parameters come first, since backward meets them first.
    """
    with DisableTorchFunctionSubclass():
        plain = [plain_alias(parameters[number]) for number in (range(len(parameters)) if order is None else order)]
    buckets, _ = bucket_assignment(plain, list(limits), [], [] if order is None else list(order))
    return buckets[::-1] if order is None else buckets


class GradBucket:
    """What a communication hook is given: the methods of ``torch.distributed.GradBucket``."""

    __slots__ = ("_bucket", "_buffer", "_index", "_last")

    def __init__(self, bucket: Bucket, buffer: torch.Tensor, index: int, last: bool) -> None:
        self._bucket, self._buffer, self._index, self._last = bucket, buffer, index, last

    def index(self) -> int:
        """The number of the bucket, in the order in which buckets leave."""
        return self._index

    def is_last(self) -> bool:
        """Whether no bucket leaves after this one."""
        return self._last

    def buffer(self) -> torch.Tensor:
        """The gradients of all its parameters, of shape (n,), not yet divided by the number of processes."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Put another tensor of shape (n,), of any dtype, in the place of the buffer."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer, each in the shape of its parameter."""
        return views_of(self._buffer, self._bucket.parameters)

    def parameters(self) -> list[torch.Tensor]:
        """The parameters, in the order of ``gradients()``."""
        return list(self._bucket.parameters)
