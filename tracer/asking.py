"""What a tracked tensor answers past interception: what it is like, and conversions to what it already is.

Nothing is recorded of either, and the way through interception takes four times as long. A ``TorchFunctionMode`` that somebody has put
on sees these calls all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ops_registry.shared.descriptors import device_of, dtype_of, is_contiguous, layout_of
from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase, count_modes, is_torch_function_enabled

#: What a tensor is like, as attributes.
ATTRIBUTES = ("device", "dtype", "is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse",
              "is_sparse_csr", "is_xpu", "itemsize", "layout", "nbytes", "ndim", "shape")  # fmt: skip
#: The same as methods, without arguments and with some.
METHODS = ("__len__", "dim", "element_size", "get_device", "is_complex", "is_conj", "is_floating_point", "is_inference", "is_neg",
           "is_signed", "ndimension", "nelement", "numel", "storage_offset")  # fmt: skip
METHODS_WITH_ARGUMENTS = ("is_contiguous", "size", "stride")
#: Conversions to a dtype of their own.
TO_DTYPE = {"bfloat16": torch.bfloat16, "double": torch.double, "float": torch.float, "half": torch.half}

#: What ``to`` is given, where it is no tensor.
_SETTINGS = frozenset({torch.dtype, torch.device, str})


class _Quiet(threading.local):
    """How many modes of this thread are our own, and need not see what a tensor is asked about itself."""

    modes = 0


quiet = _Quiet()


def attribute(name: str) -> property:
    """The attribute of that name."""
    read: Callable[[torch.Tensor], Any] = getattr(torch.Tensor, name).__get__

    def get(self: torch.Tensor) -> Any:
        if (modes := count_modes()) and modes > quiet.modes:  # others are to see it, and to have interception on
            return read(self)
        with DisableTorchFunctionSubclass():
            return read(self)

    return property(get, doc=f"``torch.Tensor.{name}``.")


def method(name: str) -> Callable[[torch.Tensor], Any]:
    """The method of that name, which takes no arguments."""
    ask: Callable[[torch.Tensor], Any] = getattr(torch.Tensor, name)

    def answer(self: torch.Tensor) -> Any:
        if (modes := count_modes()) and modes > quiet.modes:
            return ask(self)
        with DisableTorchFunctionSubclass():
            return ask(self)

    return _named(answer, name)


def method_with_arguments(name: str) -> Callable[..., Any]:
    """The method of that name."""
    ask: Callable[..., Any] = getattr(torch.Tensor, name)

    def answer(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if (modes := count_modes()) and modes > quiet.modes:
            return ask(self, *args, **kwargs)
        with DisableTorchFunctionSubclass():
            return ask(self, *args, **kwargs)

    return _named(answer, name)


def answers() -> dict[str, Any]:
    """All of them, by their names."""
    return {
        **{name: attribute(name) for name in ATTRIBUTES},
        **{name: method(name) for name in METHODS},
        **{name: method_with_arguments(name) for name in METHODS_WITH_ARGUMENTS},
        **{name: conversion(name, partial(_has_dtype, dtype)) for name, dtype in TO_DTYPE.items()},
        "contiguous": conversion("contiguous", is_contiguous),
        "cpu": conversion("cpu", TensorBase.is_cpu.__get__),  # type: ignore[attr-defined]
        "to": to,
        "type_as": type_as,
    }


def conversion(name: str, holds: Callable[[torch.Tensor], bool]) -> Callable[..., torch.Tensor]:
    """The method of that name, which without arguments gives back a tensor for which ``holds``."""
    convert: Callable[..., torch.Tensor] = getattr(torch.Tensor, name)

    def converted(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args or kwargs or not is_torch_function_enabled() or count_modes():
            return convert(self, *args, **kwargs)
        with DisableTorchFunctionSubclass():
            if holds(self):
                return self
        # What torch would call.
        return self.__torch_function__(convert, (type(self),), (self,))

    return _named(converted, name)


def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``torch.Tensor.to``."""
    wanted = args[0] if args else kwargs.get("dtype") or kwargs.get("device")
    kind = type(wanted)
    alone = len(args) + len(kwargs) == 1
    if kind not in _SETTINGS or not is_torch_function_enabled() or count_modes():
        return _like(TensorBase.to, self, wanted) if alone and args else TensorBase.to(self, *args, **kwargs)
    if alone and kind is not str:
        with DisableTorchFunctionSubclass():
            if (dtype_of if kind is torch.dtype else device_of)(self) == wanted:
                return self
    return self.__torch_function__(TensorBase.to, (type(self),), (self, *args), kwargs)


def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.Tensor.type_as``."""
    return _like(TensorBase.type_as, self, other)


def _like(convert: Callable[..., torch.Tensor], tensor: torch.Tensor, other: Any) -> torch.Tensor:
    """A tensor converted to what another is like."""
    # A tensor of somebody else's class has a say.
    if type(other) not in (torch.Tensor, type(tensor)) or not is_torch_function_enabled() or count_modes():
        return convert(tensor, other)
    with DisableTorchFunctionSubclass():
        if (
            dtype_of(tensor) is dtype_of(other)
            and device_of(tensor) == device_of(other)
            and layout_of(tensor) is layout_of(other)
        ):
            return tensor
    return tensor.__torch_function__(convert, (type(tensor),), (tensor, other))


def _has_dtype(dtype: torch.dtype, tensor: torch.Tensor) -> bool:
    return dtype_of(tensor) is dtype


def _named(answer: Callable[..., Any], name: str) -> Callable[..., Any]:
    answer.__name__, answer.__doc__ = name, f"``torch.Tensor.{name}``."
    return answer
