"""Writes in place keep the layout of what they write into.

Functionalisation makes such a write a call of the op that has a result of its own, and lets the tensor have the layout of that result:
``x.masked_fill_`` would leave a transposed ``x`` contiguous. What the step does next goes by the layout: ``view``, ``as_strided``, the
part of the memory that a recorded write has covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TorchDispatchMode, storage_key
from tracer.compiled.overlaps import Place, may_overlap, place_of
from tracer.compiled.telling import users_line
from tracer.errors import CaptureError
from tracer.naming import qualified
from tracer.node import tensors_in

_aten = torch.ops.aten
_is_dense: Any = _aten.is_non_overlapping_and_dense.default
#: What changes the layout of a tensor by intent, and what is not about its memory.
_NO_WRITES = frozenset(
    {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "set_", "resize_", "resize_as_", "requires_grad_",
     "detach_", "rename_", "share_memory_"}
)  # fmt: skip
_SHARED = "which shares memory with another argument", "Give it a copy of that"
_REPEATED = "several elements of which share memory (expand, unfold)", "Write into a copy"


class MemoryOrder(TorchDispatchMode):
    """Sees every call below functionalisation, and gives results that are written into a tensor the layout of that tensor."""

    def __init__(self) -> None:
        super().__init__()
        self._targets: Sequence[torch.Tensor] = ()

    @contextmanager
    def kept(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """While ``func`` runs on these arguments, which are functionalisation's, its writes leave layouts alone.

        Raises ``CaptureError`` where one has changed all the same.
        """
        name, outer = getattr(func, "__name__", ""), self._targets
        if name in _NO_WRITES:
            yield
            return
        tensors = tensors_in((args, tuple(kwargs.values())))
        before = [(tensor, tensor.shape, tensor.stride()) for tensor in tensors]
        out = kwargs.get("out")
        if out is not None:
            self._targets = tensors_in(out)
        elif _writes(name) or kwargs.get("inplace"):
            self._targets = tensors_in(args[:1]) or tensors_in(kwargs.get("input"))
        try:
            if self._targets is not outer:
                _refuse_overlaps(func, self._targets, () if name == "__setitem__" else tensors)
            yield
        finally:
            self._targets = outer
        for tensor, shape, stride in before:
            if tensor.shape == shape and not _are_equal(shape, tensor.stride(), stride):
                raise CaptureError(
                    f"{qualified(func)} writes into a tensor of shape {tuple(shape)} whose memory lies in another order than its axes, and "
                    f"a graph would lay it out anew. Make it contiguous first (x.contiguous())."
                )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        targets = self._targets
        if not targets or func.is_view:
            return result
        if isinstance(result, torch.Tensor):
            return _laid_out_as(targets[0], result)
        if isinstance(result, list | tuple) and len(result) == len(targets):
            return type(result)(map(_laid_out_as, targets, result))
        return result


def _refuse_overlaps(func: Callable[..., Any], targets: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    """Raise ``CaptureError`` where one element would be written twice, or be read and written: torch's own order decides there."""
    with DisableTorchFunctionSubclass():
        beside: dict[int, list[Place]] = {}
        for other in others:
            beside.setdefault(storage_key(other), []).append(place_of(other))
        for target in targets:
            place = place_of(target)
            shared = any(place != other and may_overlap(place, other) for other in beside.get(storage_key(target), ()))
            if shared or place.overlaps_itself:
                kind, remedy = _SHARED if shared else _REPEATED
                raise CaptureError(
                    f"{qualified(func)} writes into a tensor of shape {tuple(target.shape)}, {kind}, {users_line()}: a graph has each "
                    f"value once. {remedy} (x.clone())."
                )


def _writes(name: str) -> bool:
    """Whether a function of this name writes into its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    if not name.endswith("__"):
        return name.endswith("_")
    return name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))


def _laid_out_as(target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``result`` in the order of memory of ``target``, if they are of one shape."""
    stride = target.stride()
    if result.shape != target.shape or _are_equal(target.shape, result.stride(), stride):
        return result
    if not _is_dense(target) or not _is_dense(result):
        return result
    order = sorted(range(len(stride)), key=stride.__getitem__, reverse=True)
    there = _aten.clone.default(_aten.permute.default(result, order), memory_format=torch.contiguous_format)
    return _aten.permute.default(there, [order.index(dim) for dim in range(len(order))])


def _are_equal(shape: Sequence[int], stride: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two strides of one shape lay it out in the same way: that of an axis of one element says nothing."""
    return 0 in shape or all(size == 1 or a == b for size, a, b in zip(shape, stride, other, strict=True))
