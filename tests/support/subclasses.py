"""Tensor subclasses as libraries write them, each with another way to answer calls."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.torch_private import tree_map


class Silent(torch.Tensor):
    """Leaves every call to torch's own handler."""


class HandsOn(torch.Tensor):
    """Adds something of its own, and hands on to torch's own handler: metadata, logs."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Heir(HandsOn):
    """Takes its handler over from its base."""


class RunsBelow(torch.Tensor):
    """Runs the call with interception off, and gives back what comes."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class WrapsAgain(torch.Tensor):
    """Runs the call with interception off, and gives results its own class."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return tree_map(lambda t: t.as_subclass(cls) if isinstance(t, torch.Tensor) else t, result)


class Unwraps(torch.Tensor):
    """Makes every argument a plain tensor, and calls the function again."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(t: Any) -> Any:
            return t.as_subclass(torch.Tensor) if isinstance(t, torch.Tensor) else t

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


class Careful(torch.Tensor):
    """Answers for its own class alone, as image classes do, and gives back plain tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return tree_map(lambda t: t.as_subclass(torch.Tensor) if isinstance(t, torch.Tensor) else t, result)


class Holds(torch.Tensor):
    """Its values are in a tensor that it holds; its own memory is not looked at."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_subclass(cls, torch.full_like(inner, float("nan")))
        made.inner = inner
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inner(t: Any) -> Any:
            return object.__getattribute__(t, "inner") if isinstance(t, cls) else t

        return func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))


class Duck:
    """No tensor, and answers for one."""

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inner(t: Any) -> Any:
            return t.inner if isinstance(t, cls) else t

        return func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))


class Refuses(torch.Tensor):
    """Answers nothing."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


class Dispatches(torch.Tensor):
    """A wrapper that works below torch's autograd, as DTensor and FakeTensor do."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inner(t: Any) -> Any:
            return t.inner if isinstance(t, cls) else t

        result = func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
        return tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, result)


def of_class(kind: Any, values: torch.Tensor) -> Any:
    """A tensor of the class, with these values."""
    return kind(values) if kind in (Holds, Duck, Dispatches) else values.as_subclass(kind)


#: Classes that work beside a tensor which requires grad in torch.
MEETING = (Silent, HandsOn, Heir, RunsBelow, WrapsAgain, Unwraps, Careful, Holds, Duck)
