"""``--track``: what a script of stock torch code trains is tracked on the way in, parameters as modules get them, leaves as they are made.

Each stays the same object. Nothing is tracked that torch's own autograd may have recorded already: it would not find it any more. Such a
leaf is left to torch, and the calls on it are recorded all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from ops_registry.registry import find
from ops_registry.torch_private import transform_level
from tracer.backprop.api import backward_of
from tracer.recording.python_functions import unchecked
from tracer.recording.tracked_parameters import is_trackable, track_parameter
from tracer.tracked_tensor import HANDLERS, Tensor, track_in_place

#: What makes a leaf of a tensor that did not require grad.
_TURNED_ON = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


class Tracking(TorchFunctionMode):
    """Inside ``with Tracking():`` leaves of torch's own become tracked."""

    def __enter__(self) -> Tracking:
        #: Those written in Python whose body runs: met again inside, such a name is that of a function in C.
        self._running: set[Callable[..., Any]] = set()
        self._hook = register_module_parameter_registration_hook(_track_registered)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hook.remove()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The call, recorded if it takes a leaf; what it made a leaf is tracked."""
        kwargs = kwargs or {}
        if func is torch.Tensor.backward and type(args[0]) is Tensor:
            return backward_of(*args, **kwargs)  # straight on: the traceback of one that fails is the user's to read
        if transform_level() is not None:  # a transform of torch's own runs, which must see what it is to differentiate
            return func(*args, **kwargs)
        if func in _TURNED_ON:
            was_on = args[0].requires_grad
            result = func(*args, **kwargs)
            if not was_on and _is_native_leaf(args[0]):
                track_in_place(args[0])
            return result
        if torch.is_grad_enabled() and (_holds_leaf(args) or _holds_leaf(kwargs.values())):
            if isinstance(func, FunctionType) and func not in HANDLERS and func not in self._running:
                return self._run_body(func, args, kwargs)
            if find(func) is not None:
                return Tensor.__torch_function__(func, types, args, kwargs)
        result = func(*args, **kwargs)
        if _is_native_leaf(result) and not any(result is a for a in args):  # made just now
            track_in_place(result)
        return result

    def _run_body(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function that torch writes in Python: its parts come here too."""
        self._running.add(func)
        super().__enter__()
        try:
            return unchecked(func)(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)
            self._running.discard(func)


def _is_native_leaf(value: Any) -> bool:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not (value.requires_grad and value.is_leaf):
        return False
    return not hasattr(value, "_node")  # a tracked one is torch's own for a while, for its tracers


def _holds_leaf(values: Iterable[Any]) -> bool:
    return any(_holds_leaf(v) if isinstance(v, tuple | list) else _is_native_leaf(v) for v in values)


def _track_registered(module: torch.nn.Module, name: str, parameter: Any) -> None:
    if is_trackable(parameter):
        track_parameter(parameter)
