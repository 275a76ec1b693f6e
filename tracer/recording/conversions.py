"""Conversions and constructors that take a tensor and never reach interception: ``asarray``, ``torch.Tensor(x)`` and others.

torch runs them on a tracked tensor past ``__torch_function__``, and the result would have no history. What is here stands in their place
(``tracer.install`` puts it there), and makes the result of a tracked tensor by calls that are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ops_registry.torch_private import DisableTorchFunctionSubclass, EnableTorchFunction, TensorBase
from tracer.notes.cuts import asked, note_cut
from tracer.tracked_tensor import Tensor, mark_as_parameter


def _has_history(value: Any) -> TypeGuard[Tensor]:
    """Whether a conversion of ``value`` is to be recorded."""
    return type(value) is Tensor and value._node is not None and torch.is_grad_enabled()


def _recorded_alias(tensor: Tensor) -> Tensor:
    """A view of the whole tensor, with its history; interception may be off here, as in somebody's own handler."""
    with EnableTorchFunction():
        return torch.ops.aten.alias(tensor)


def _recorded(args: tuple[Any, ...], kwargs: dict[str, Any], made: torch.Tensor) -> torch.Tensor:
    """What an old constructor made of its arguments, with the history of the tensor that it is a view of, or of its sparse values."""
    other = args[0] if args else kwargs.get("other")
    if _has_history(other):
        return _recorded_alias(other)
    if _has_history(args[1] if len(args) > 1 else kwargs.get("values")):
        with EnableTorchFunction():
            return torch.sparse_coo_tensor(*args, **kwargs)
    return made


def as_subclass(self: torch.Tensor, cls: type) -> Any:
    """``Tensor.as_subclass``, which keeps the history of a tracked tensor.

    The result of one is of the class ``tracer.Tensor``, whatever ``cls`` is: the history of a tensor is what only that class carries.
    """
    if not _has_history(self):
        note_cut("other class", "as_subclass", self)
        return TensorBase.as_subclass(self, cls)
    alias = _recorded_alias(self)
    return mark_as_parameter(alias) if issubclass(cls, torch.nn.Parameter) else alias


def new_tensor(*args: Any, **kwargs: Any) -> Any:
    """``torch.Tensor(...)``: of a tracked tensor, a view of it with its history.

    ``args`` begin with the class: torch's compiler compares signatures here, and lets no other pass.
    """
    other = args[1] if len(args) > 1 else kwargs.get("other")
    if _has_history(other):
        with DisableTorchFunctionSubclass():
            TensorBase.__new__(torch.Tensor, *args[1:], **kwargs)  # raises where torch does
        return as_subclass(other, args[0])
    return TensorBase.__new__(*args, **kwargs)


def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.new(...)``, torch's old constructor on a tensor: of a tracked tensor, a view of that with its history."""
    with DisableTorchFunctionSubclass():
        made = TensorBase.new(self, *args, **kwargs)
    return _recorded(args, kwargs, made)


def set_(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor.set_``, which raises where a history would be lost, whichever of the tensors is tracked."""
    return Tensor.set_(self, *args, **kwargs)  # type: ignore[arg-type]


def asarray(
    obj: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool | None = None,
) -> torch.Tensor:
    """``torch.asarray`` of a tracked tensor; raises ``ValueError`` as torch does where ``copy=False`` cannot be had."""
    if copy is False:
        with DisableTorchFunctionSubclass():
            native_asarray(obj, dtype=dtype, device=device, copy=False)
    made = obj.to(device=device, dtype=dtype, copy=bool(copy))
    if requires_grad is None or made.requires_grad == requires_grad:
        return made
    return made.requires_grad_() if requires_grad else made.detach()


def as_tensor(data: Tensor, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """``torch.as_tensor`` of a tracked tensor."""
    return data.to(device=device, dtype=dtype)


native_asarray: Callable[..., torch.Tensor] = torch.asarray


def converting(convert: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function ``convert``, which a tracked tensor among its arguments intercepts, as torch's own does not."""

    @functools.wraps(convert)
    def converted(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else next(iter(kwargs.values()), None)
        if type(given) is Tensor and has_torch_function((given,)):
            return handle_torch_function(converted, (given,), *args, **kwargs)
        return convert(*args, **kwargs)

    return converted


def noticing(convert: Callable[..., Any], what: str) -> Callable[..., Any]:
    """torch's function ``convert``, which takes a tracked tensor unseen and gives what has no history: a graph with sites notes it."""

    @functools.wraps(convert)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        if asked.graphs and args and type(args[0]) is Tensor:
            note_cut(what, convert.__name__.strip("_"), args[0])
        return convert(*args, **kwargs)

    return noticed


def knowing_replacements(constructors: Callable[[], set[Any]], originals: tuple[Any, ...]) -> Callable[[], set[Any]]:
    """The functions to which ``torch.set_default_device`` gives a device, torch's own behind our replacements included."""

    @functools.cache
    def known() -> set[Any]:
        return constructors() | set(originals)

    return known


#: The names of torch's old constructors for one dtype; those of integers refuse a tensor that can require grad.
TYPED_CONSTRUCTORS = ("FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor")


class TypedConstructor(type):
    """The class of what stands in the place of ``torch.FloatTensor`` and its like; each is a class, as torch's are.

    Everything but a call on a tracked tensor is left to torch's own class, ``native``.
    """

    native: Any

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return cls.native.__name__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _recorded(args, kwargs, cls.native(*args, **kwargs))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.native)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls.native)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.native, name)

    def __repr__(cls) -> str:
        return repr(cls.native)


def typed_constructor(native: Any) -> Any:
    """What is to stand in the place of ``native``, one of torch's old constructors for one dtype."""
    # torch reads the whole name of a class that says what a tensor is to be converted to: x.type(torch.FloatTensor).
    name = f"{native.__module__}.{native.__name__}"
    own = {"native": native, "__module__": native.__module__, "__qualname__": native.__name__}
    return TypedConstructor(name, (), own)


def unwrapping(set_default: Callable[[Any], None]) -> Callable[[Any], None]:
    """``torch.set_default_tensor_type``'s inner function, given torch's own class in place of a ``TypedConstructor``."""

    def unwrapped(kind: Any) -> None:
        set_default(kind.native if isinstance(kind, TypedConstructor) else kind)

    return unwrapped
