"""Ops that the graph has in another spelling than functionalisation gives them, so that they do what the eager ones do."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from ops_registry.torch_private import TorchDispatchMode

_aten = torch.ops.aten
#: What makes memory that nobody has written.
_UNWRITTEN = frozenset(
    {_aten.empty_like.default, _aten.new_empty.default, _aten.empty.memory_format, _aten.empty_strided.default}
)


class Respelled(TorchDispatchMode):
    """Sees every call of the step, below functionalisation."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _aten.native_batch_norm.default and args[5] and args[3] is not None:
            return _batch_norm(*args)
        if func is _aten.native_dropout.default and args[2] and args[1] and args[0].device.type == "cpu":
            return _dropout(*args[:2])
        if func is _aten.bernoulli.p and _is_unwritten(args[0]):
            return _aten.bernoulli_.float(torch.empty_like(args[0]), *args[1:], **(kwargs or {}))
        if func is _aten.view_as_real.default and args[0].is_conj():
            # What was written through a conjugated view comes here with torch's lazy conjugation still on it.
            return func(args[0].resolve_conj())
        return func(*args, **(kwargs or {}))


def _batch_norm(*args: Any) -> tuple[torch.Tensor, ...]:
    """Its running statistics are updated inside of a kernel that claims to write nothing: a graph would drop or move that."""
    *results, mean, var = _aten._native_batch_norm_legit_functional(*args)
    args[3].copy_(mean)
    args[4].copy_(var)
    return tuple(results)


def _dropout(input: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """With symbolic sizes torch writes dropout so; eager it is this, which draws the same numbers, and rounds otherwise."""
    noise = torch.zeros_like(input) if p == 1 else torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
    return input * noise, noise.bool()


def _is_unwritten(tensor: torch.Tensor) -> bool:
    """Whether it is memory to be filled in place, as dropout does.

    That goes in the order of the memory; a result of its own would be contiguous, and get other numbers.
    """
    mode = get_proxy_mode()
    known = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    return known is not None and known.proxy.node.target in _UNWRITTEN
