"""Other people's tensor subclasses among the arguments of a call.

A class with a ``__torch_function__`` of its own answers every call that its tensors take part in, and as a rule runs it with interception
off: a tracked tensor in that call would lose its gradient in silence. So their handler is called here, and what it runs on a tracked tensor
is recorded all the same. The result of a recorded call is of the class ``tracer.Tensor``, whatever class their handler would give it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ops_registry.shared.descriptors import dtype_of, is_nested
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    EnableTorchFunction,
    disabled_torch_function,
    is_torch_function_enabled,
)
from tracer.errors import UnsupportedError
from tracer.naming import qualified
from tracer.recording.inplace import is_in_place
from tracer.recording.nested import refuse_nested
from tracer.recording.parents import DIFFERENTIABLE, holds_tracked
from tracer.recording.results import came_in
from tracer.tracked_tensor import Tensor, plain_alias

#: The ``__torch_function__`` of classes that intercept nothing.
_DEFAULT_TORCH_FUNCTIONS = (
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
    torch.nn.Parameter.__torch_function__,
)


@functools.cache
def is_foreign(kind: type) -> bool:
    """Whether a class intercepts calls in a way of its own, so that the call is for it to answer."""
    theirs = getattr(kind, "__torch_function__", None)
    return not issubclass(kind, Tensor) and getattr(theirs, "__func__", theirs) not in _DEFAULT_TORCH_FUNCTIONS


def meet(func: Callable[..., Any], types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with tracked tensors and those of other classes: these answer it, and what they run is recorded.

    Raises ``UnsupportedError`` where none of the classes does.
    """
    others = tuple(kind for kind in types if kind is not Tensor)
    with RecordedAllTheSame():
        for kind in others:
            answer = kind.__torch_function__(func, others, args, kwargs)  # type: ignore[attr-defined]
            if answer is not NotImplemented:
                return answer
    raise UnsupportedError(
        f"{qualified(func)}() was called with a tracked tensor (tracer.Tensor) and with {_listed(others)}, and no class answers the call. "
        f"Convert the other tensors first, by their class's own way or x.as_subclass(torch.Tensor)."
    )


def let_meet(kind: type) -> Any:
    """What is to be the ``__torch_function__`` of another class, whose own it calls: ``meet`` where a tracked tensor is in the call."""
    own = vars(kind)["__torch_function__"]

    def bound(cls: type, *call: Any) -> Any:
        return own.__get__(None, cls)(*call)

    # torch's compiler follows the function of a class method, and nothing that binds one.
    theirs = own.__func__ if isinstance(own, classmethod) else bound

    def met(
        cls: type,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if Tensor in types:
            return meet(func, types, args, kwargs or {})
        return theirs(cls, func, types, args, kwargs)

    return classmethod(met)


def answers_calls(kind: type) -> bool:
    """Whether a class defines a ``__torch_function__`` of its own, and is not ours."""
    theirs = vars(kind).get("__torch_function__", disabled_torch_function)
    return theirs is not disabled_torch_function and kind not in (Tensor, torch.Tensor)


def subclasses_of(kind: type) -> list[type]:
    """All classes that are there by now and derive from ``kind``."""
    found: list[type] = []
    below: list[type] = kind.__subclasses__()
    for direct in below:
        found += [direct, *subclasses_of(direct)]
    return found


def init_subclass(cls: Any, /, **kwargs: Any) -> None:
    """``__init_subclass__`` of ``torch.Tensor``: a class made from now on meets tracked tensors too."""
    super(torch.Tensor, cls).__init_subclass__(**kwargs)
    if answers_calls(cls):
        cls.__torch_function__ = let_meet(cls)


def refuse_masked(new: Callable[..., Any]) -> Callable[..., Any]:
    """``MaskedTensor.__new__``, which refuses tracked tensors."""

    @functools.wraps(new)
    def made(cls: type, data: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        if type(data) is Tensor or type(mask) is Tensor:
            raise UnsupportedError(
                f"masked_tensor() got a tracked tensor (tracer.Tensor) of shape {tuple(data.shape)}: a MaskedTensor works below torch's "
                f"autograd and can carry no history of ours. Use the functions of torch.masked with mask= on the tensor itself, "
                f"torch.where(mask, x, 0), or x.data for a masked tensor without a gradient."
            )
        return new(cls, data, mask, *args, **kwargs)

    return made


def _listed(kinds: tuple[type, ...]) -> str:
    return " and ".join(f"a {kind.__module__}.{kind.__qualname__}" for kind in kinds)


class RecordedAllTheSame(TorchFunctionMode):
    """Records calls on tracked tensors that are made where interception by subclasses is off: modes are asked even there."""

    #: torch's guard under which all other calls run.
    native: Any = DisableTorchFunctionSubclass

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_torch_function_enabled():  # turned on again inside the block
            return func(*args, **kwargs)
        if not self.concerns(args, kwargs):
            with self.native():
                return func(*args, **kwargs)
        target = args[0] if args else None
        into_theirs = is_in_place(func) and isinstance(target, torch.Tensor) and is_foreign(type(target))
        if into_theirs and _wants_gradient(args, kwargs):
            raise UnsupportedError(
                f"{qualified(func)}() writes a tracked tensor that requires grad into a {type(target).__qualname__}, which cannot carry "
                f"its history. Use the out-of-place op, or write into a copy: x.as_subclass(torch.Tensor).clone()."
            )
        aliases: dict[int, torch.Tensor] = {}
        plain_args, plain_kwargs = _plain(args, aliases), _plain(kwargs, aliases)
        with EnableTorchFunction():
            result = Tensor.__torch_function__(func, (Tensor,), plain_args, plain_kwargs)
        # What came in goes out as it was: x.to(w) of the same dtype.
        return aliases.get(id(result), result)

    def concerns(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is to be recorded."""
        return _wants_gradient(args, kwargs)


def _wants_gradient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return torch.is_grad_enabled() and holds_tracked((args, kwargs))


def _plain(nest: Any, aliases: dict[int, torch.Tensor]) -> Any:
    """A nest of arguments with plain aliases in place of tensors of other classes; ``aliases`` gives the tensor by the id of its alias.

    Leaves and results of torch's own autograd stay as they are: they are adopted.
    """
    if isinstance(nest, torch.Tensor):
        if nest.requires_grad or not is_foreign(type(nest)):
            return nest
        alias = plain_alias(nest)
        aliases[id(alias)] = nest
        return alias
    if isinstance(nest, dict):
        return {name: _plain(value, aliases) for name, value in nest.items()}
    if type(nest) in (tuple, list):
        return type(nest)([_plain(value, aliases) for value in nest])
    return nest


def refuse_lost_history(name: str, results: Sequence[Any], arguments: tuple[Any, ...]) -> None:
    """Raise ``UnsupportedError`` for a new result of a recorded call that is of a class which can carry no history of ours."""
    for result in results:
        if not isinstance(result, torch.Tensor) or dtype_of(result) not in DIFFERENTIABLE:
            continue
        kind = type(result)
        if is_nested(result):
            refuse_nested(name)
        if kind in (Tensor, torch.Tensor) or came_in(result, arguments, {}):
            continue
        raise UnsupportedError(
            f"{name}() made a {kind.__module__}.{kind.__qualname__} out of a tracked tensor (tracer.Tensor) that requires grad: no "
            f"gradient can come back from there. Detach the tracked tensor, unwrap the other one, or leave all of it to torch's own "
            f"autograd (do not track)."
        )
