"""Ops of which torch cannot tell what they give for symbolic sizes: they get numbers, and the graph is one for these sizes alone."""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ops_registry.torch_private import suggest_memory_format, tree_any_only, tree_map
from tracer.compiled.fused_steps import WithFusedSteps
from tracer.errors import CaptureError

_Symbol = (torch.SymInt, torch.SymFloat)
#: torch writes each op that fails into its log, with the whole stack.
_log = logging.getLogger("torch._subclasses.fake_tensor")


class OfOneThread(WithFusedSteps):
    """Tensors without values, which stand in for real ones of the user's: any thread that holds one of these meets them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._thread = threading.get_ident()

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives, without values. Raises ``CaptureError`` in another thread than that of the capture."""
        # Torch's own engine runs parts of a backward pass in threads of its own, with the modes of the capture.
        if threading.get_ident() != self._thread and get_proxy_mode() is None:
            raise CaptureError(
                f"a tensor is used in another thread ({func}) while a step that reaches it is captured: for that time it has no values. "
                f"Make the first call of a compiled step before other threads use its model, or give them a copy of it."
            )
        return super().dispatch(func, types, args, kwargs)


class Specialising(OfOneThread):
    """Tensors without values, whose symbolic sizes become numbers where an op can do nothing with them."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives, without values."""
        kwargs = kwargs or {}
        if not tree_any_only((torch.Tensor, *_Symbol), _is_symbolic, (args, kwargs)):
            return super().dispatch(func, types, args, kwargs)
        level = _log.level
        _log.setLevel(logging.CRITICAL + 1)
        try:
            return super().dispatch(func, types, args, kwargs)
        except Exception:
            schema = getattr(func, "_schema", None)
            if schema is None or schema.is_mutable or func.is_view:
                raise
            known = self._known(func.__name__.partition(".")[0], args)
            if known is not None:
                return known
            fixed_args, fixed_kwargs = tree_map(self._fixed, (args, kwargs))
            return super().dispatch(func, types, fixed_args, fixed_kwargs)
        finally:
            _log.setLevel(level)

    def _known(self, op: str, args: Any) -> torch.Tensor | None:
        """What the backward passes of interpolation and of shrinking give, which are often on the way of a batch of any size."""
        with self:
            if op in ("hardshrink_backward", "softshrink_backward"):
                return args[0] + args[1]
            if "upsample_" in op and op.endswith("_backward"):
                grad, _, shape = args[:3]
                return grad.new_empty(shape).contiguous(memory_format=suggest_memory_format(grad))
        return None

    def _fixed(self, value: Any) -> Any:
        """The same of fixed sizes. To ask a symbol for its number makes that number a condition."""
        if isinstance(value, torch.SymInt):
            return int(value)
        if isinstance(value, torch.SymFloat):
            return float(value)
        if not isinstance(value, torch.Tensor) or not _is_symbolic(value):
            return value
        if value.is_conj() or value.is_neg():
            raise NotImplementedError("a conjugated tensor of symbolic sizes")
        shape, strides = ([int(number) for number in numbers] for numbers in (value.shape, value.stride()))
        with self:
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(number, torch.SymInt) for number in (*value.shape, *value.stride()))
    return isinstance(value, _Symbol)
