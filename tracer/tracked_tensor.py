"""The tracked tensor: a ``torch.Tensor`` whose calls are recorded. Its native ``requires_grad`` stays off, so torch records nothing.

What the class gets from the floors above it, interception, ``grad_fn`` and ``backward``, ``tracer.install`` puts in.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase
from tracer.asking import answers
from tracer.earlier_uses import guard_earlier_uses
from tracer.errors import GradientArgumentError, InPlaceError, NoHistoryError, UnsupportedError
from tracer.node import Leaf, Node
from tracer.notes.cuts import note_cut, note_frozen

#: ``detach`` past our own override: a plain alias.
plain_alias: Callable[[torch.Tensor], torch.Tensor] = TensorBase.detach

#: torch's own descriptors, past our properties of the same names.
_GRAD: Any = torch.Tensor.grad
_DATA: Any = torch.Tensor.data
_get_grad, _set_grad = _GRAD.__get__, _GRAD.__set__

#: Attributes of ours in the ``__dict__`` of a tensor; a copy does not take them over.
_OWN = frozenset({"_base_in_level", "_node", "_views", "_write_ban"})
_OWN_AND_MARK = _OWN | {"_is_param"}


class Tensor(torch.Tensor):
    """A tensor whose calls are recorded and whose gradients come from the rules in ``ops_registry``.

    Made by ``tracer.tensor``, ``tracer.track``, ``nn.track``, or by any torch call on one. Everything that torch offers on a tensor
    works on it. Do not subclass it: an op's result is always exactly this class.
    """

    #: The node that made it, a ``Leaf`` where the user wants a gradient, None where no gradient is wanted.
    _node: Node | None = None

    # ------------------------------------------------------------------ what autograd adds to a tensor
    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for this tensor."""
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set whether gradients are computed for this leaf, as in torch.

        Raises ``GradientArgumentError`` for integers and bools, and where a tensor with a history is to stop requiring grad.
        """
        node = self._node
        with DisableTorchFunctionSubclass():
            if requires_grad and node is None:
                if not (self.dtype.is_floating_point or self.dtype.is_complex):
                    raise GradientArgumentError(
                        f"only floating point and complex tensors can require gradients, and this one is {self.dtype}"
                    )
                self._node = Leaf(self, self.shape, self.dtype)
            elif not requires_grad and node is not None:
                if not isinstance(node, Leaf):
                    raise GradientArgumentError(
                        f"requires_grad can be turned off for leaves only; this tensor was made by {node.op}. Use x.detach() instead."
                    )
                note_frozen(self)
                self._node = None
        return self

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        """Whether no recorded call made it."""
        return self._node is None or isinstance(self._node, Leaf)

    @property
    def grad(self) -> torch.Tensor | None:
        """The accumulated gradient, as in torch."""
        node = self._node
        if type(node) is not Leaf and node is not None and (node.extras is None or node.extras.retain is None):
            warnings.warn(
                "The .grad attribute of a tensor that is not a leaf is being accessed. It won't be populated during backward unless "
                "retain_grad() was called on it.",
                UserWarning,
                stacklevel=2,
            )
        with DisableTorchFunctionSubclass():
            return _get_grad(self)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        with DisableTorchFunctionSubclass():
            _set_grad(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``.grad``: drop it, or fill it with zeros in place; ``torch.nn.Module.zero_grad`` for one tensor."""
        zero_grad_of(self, set_to_none)

    @property
    def data(self) -> torch.Tensor:
        """A plain tensor that shares storage and has no history; writes to it go unnoticed, as in torch."""
        note_cut("data", "data", self)
        with DisableTorchFunctionSubclass():
            return _DATA.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        note_cut("data", "data", value)
        with DisableTorchFunctionSubclass():
            _DATA.__set__(self, value)
            if isinstance(self._node, Leaf):
                self._node.shape, self._node.dtype = self.shape, self.dtype

    @property
    def retains_grad(self) -> bool:  # type: ignore[override]
        """Whether ``retain_grad`` was called on this tensor, which is not a leaf."""
        extras = None if self._node is None else self._node.extras
        return extras is not None and extras.retain is not None

    @property
    def output_nr(self) -> int:  # type: ignore[override]
        """Which result of its call it is."""
        return getattr(self._node, "index", 0)

    def retain_grad(self) -> None:
        """Let backward fill ``.grad`` of this tensor though it is not a leaf.

        Raises ``NoHistoryError`` for a tensor that does not require grad.
        """
        node = self._node
        if node is None:
            raise NoHistoryError("can't retain_grad() on a tensor that does not require grad")
        if not isinstance(node, Leaf):
            node.extra().retain = weakref.ref(self)

    def register_hook(self, hook: Callable[[torch.Tensor], torch.Tensor | None]) -> RemovableHandle:
        """Call ``hook`` with this tensor's gradient during backward; what it returns, unless None, takes the gradient's place.

        Raises ``NoHistoryError`` for a tensor that does not require grad.
        """
        if self._node is None:
            raise NoHistoryError("cannot register a hook on a tensor that does not require grad")
        return self._node.add_hook(hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
        """Call ``hook`` with this leaf once its ``.grad`` has been filled.

        Raises ``NoHistoryError`` for a tensor that does not require grad or is not a leaf.
        """
        if not isinstance(self._node, Leaf):
            raise NoHistoryError(
                "post accumulate grad hooks cannot be registered on a tensor that is not a leaf requiring grad"
            )
        extras = self._node.extra()
        if extras.accumulate_hooks is None:
            extras.accumulate_hooks = OrderedDict()
        handle = RemovableHandle(extras.accumulate_hooks)
        extras.accumulate_hooks[handle.id] = hook
        return handle

    def detach(self) -> Tensor:
        """A tracked tensor that shares storage and has no history."""
        note_cut("detach", "detach", self)
        return tracked_alias(self)

    def detach_(self) -> Tensor:
        """Drop this tensor's own history."""
        with DisableTorchFunctionSubclass():
            if self._base is not None and self._node is not None:
                raise UnsupportedError("can't detach a view in place. Use detach() instead.")
        note_cut("detach", "detach_", self)
        self._node = None
        return self

    def set_(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in torch, where no history would contradict the new memory, neither its own nor that of a source; else ``InPlaceError``."""
        tensors = [t for t in (self, *args, *kwargs.values()) if type(t) is Tensor and t._node is not None]
        if tensors and torch.is_grad_enabled():
            raise InPlaceError(
                f"set_ gives other memory to a tensor, and one of shape {tuple(tensors[0].shape)} that requires grad takes part: a history "
                f"would be that of values it no longer has, or be lost. Call it under torch.no_grad(), or assign .data."
            )
        note_cut("no_grad", "set_", (args, kwargs))
        with DisableTorchFunctionSubclass():
            TensorBase.set_(self, *args, **kwargs)
        return self

    # ------------------------------------------------------------------ leaving the world of tensors
    def numpy(self, *, force: bool = False) -> Any:
        """As in torch; raises ``GradientArgumentError`` for a tensor that requires grad, unless ``force``."""
        if self._node is not None and not force:
            raise GradientArgumentError(
                "can't call numpy() on a tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        note_cut("numpy", "numpy", self)
        with DisableTorchFunctionSubclass():
            return torch.Tensor.numpy(self, force=force)

    def __format__(self, spec: str) -> str:
        with DisableTorchFunctionSubclass():
            if self.dim() == 0 and not self.is_meta:
                return self.item().__format__(spec)
            return object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        node = self._node
        with DisableTorchFunctionSubclass():
            text = repr(plain_alias(self))
        if node is None:
            return text
        history = "requires_grad=True" if isinstance(node, Leaf) else f"grad_fn=<{node.name()}>"
        return f"{text[:-1]}, {history})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if self._node is not None and not isinstance(self._node, Leaf):
            raise UnsupportedError(
                f"only leaves can be deep-copied, and this tensor of shape {tuple(self.shape)} was made by {self._node.op}. Copy "
                f"x.detach() instead. Where a module holds it since its last forward pass, as under the old torch.nn.utils.weight_norm "
                f"and spectral_norm, use those of torch.nn.utils.parametrizations, or remove it before the copy (remove_weight_norm)."
            )
        note_cut("deepcopy", "deepcopy", self)
        with DisableTorchFunctionSubclass():
            twin = become_tracked(copy.deepcopy(plain_alias(self), memo))
            memo[id(self)] = twin
            if self._node is not None:
                twin.requires_grad_()
            gradient = _GRAD.__get__(self)
            if gradient is not None and not is_parameter(self):  # torch's parameters leave it behind
                _GRAD.__set__(twin, copy.deepcopy(gradient, memo))
        for name, value in self.__dict__.items():
            if name not in _OWN:
                setattr(twin, name, copy.deepcopy(value, memo))
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        note_cut("saved", "save", self)
        # A plain tensor is what torch's safe loading accepts; it is adopted, with its gradient, wherever it meets a tracked one.
        with DisableTorchFunctionSubclass():
            plain = plain_alias(self)
        if is_parameter(self):
            plain = torch.nn.Parameter(plain, requires_grad=self._node is not None)
        elif self._node is not None:
            plain.requires_grad_()
        return plain.__reduce_ex__(protocol)


for _name, _answer in answers().items():
    setattr(Tensor, _name, _answer)


def reduce_between_processes(tensor: Tensor) -> Any:
    """How a tracked tensor is sent to another process, where its history cannot follow: it is the receiver that is told."""
    if tensor.is_leaf:
        return tensor.__reduce_ex__(None)
    # Raised here, it would be printed by the thread that sends, and the receiver would wait for ever.
    return _refuse_received, (tensor._node.op, tuple(tensor.shape))  # type: ignore[union-attr]


def _refuse_received(op: str, shape: tuple[int, ...]) -> None:
    raise UnsupportedError(
        f"a tensor of shape {shape} with a history, made by {op}, was sent from another process (a DataLoader worker, a queue): no "
        f"history crosses processes, and its gradient would be lost. Send x.detach(), or make it in this process (num_workers=0)."
    )


# Libraries pick their backend by the module of a tensor's class.
Tensor.__module__ = "torch"


def become_tracked(tensor: Any, node: Node | None = None) -> Tensor:
    """The very object, tracked from now on, with ``node`` as its history.

    Never for an object that somebody else holds (an argument, ``.grad``, ``._base``), unless it is to become tracked for them too.
    """
    tensor.__class__ = Tensor
    if node is not None:
        tensor._node = node
    return tensor


def tracked_alias(tensor: torch.Tensor, node: Node | None = None) -> Tensor:
    """A tracked tensor that shares the memory of ``tensor`` and has ``node`` as its history."""
    with DisableTorchFunctionSubclass():
        return become_tracked(plain_alias(tensor), node)


def track_in_place(tensor: Any) -> Tensor:
    """Turn a plain leaf into a tracked one, in place: the object, its ``.grad`` and its hooks stay, also hooks whose handles are out.

    A use of it that torch has recorded before raises ``UnsupportedError`` when backward comes to it.
    """
    wanted, hooks, post_hooks = tensor.requires_grad, tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    if wanted:
        guard_earlier_uses(tensor)
    tensor.requires_grad_(False)
    # Assigning the class keeps the object, and with it every reference that optimisers and other modules hold.
    tracked = become_tracked(tensor)
    if wanted:
        node = tracked.requires_grad_()._node
        assert node is not None
        # The dictionaries themselves, so that handles given out before still remove their hooks.
        if hooks is not None:
            node.extra().hooks = hooks
        if post_hooks is not None:
            node.extra().accumulate_hooks = post_hooks
    return tracked


def users_attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that somebody has given to a tensor."""
    return {name: value for name, value in tensor.__dict__.items() if name not in _OWN_AND_MARK}


def mark_as_parameter(tensor: Tensor) -> Tensor:
    """Let a tracked leaf be an instance of ``torch.nn.Parameter``, by the attribute that torch's class asks for."""
    tensor._is_param = True
    return tensor


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether ``mark_as_parameter`` has marked it."""
    return getattr(tensor, "_is_param", False)


def zero_grad_of(tensor: torch.Tensor, set_to_none: bool) -> None:
    """Clear ``.grad`` of a tensor, tracked or not: drop it, or fill it with zeros in place, without a history."""
    if not tensor.is_leaf and not tensor.retains_grad:
        return  # it has none, and torch warns of the question
    gradient = tensor.grad
    if gradient is None or set_to_none:
        tensor.grad = None
        return
    if gradient.requires_grad:
        gradient = tensor.grad = gradient.detach()
    gradient.zero_()


def track(tensor: torch.Tensor, requires_grad: bool | None = None) -> Tensor:
    """A tracked leaf that shares storage with ``tensor``; it requires grad if ``tensor`` does, unless ``requires_grad`` says so.

    Raises ``GradientArgumentError`` when ``requires_grad`` is asked for an integer or bool tensor, or ``tensor`` has a history;
    ``UnsupportedError`` for a nested tensor, and for a subclass that works below torch's autograd (DTensor, fake tensors).
    """
    if tensor.is_nested:
        raise UnsupportedError(
            "track() got a nested tensor, which is not supported. Pad it (to_padded_tensor), or track its values."
        )
    if requires_grad is None:
        requires_grad = tensor.requires_grad
    if not tensor.is_leaf:
        raise GradientArgumentError(
            "track() makes a leaf, and this tensor has a history that would be cut. Pass tensor.detach()."
        )
    note_cut("conversion", "track", tensor)
    return _leaf(tensor, "track").requires_grad_(requires_grad)


def _leaf(tensor: torch.Tensor, function: str) -> Tensor:
    """A tracked tensor that shares storage with ``tensor`` and is no view of it."""
    with DisableTorchFunctionSubclass():
        alias = plain_alias(tensor)
        if type(alias) is not torch.Tensor:
            raise UnsupportedError(
                f"{function}() got a {type(alias).__module__}.{type(alias).__qualname__}, a class that works below torch's autograd "
                f"(__torch_dispatch__) and cannot be tracked. Unwrap it, or leave all of it to torch's own autograd. For shapes alone, "
                f"use the meta device."
            )
        return become_tracked(alias)


def tensor(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tracked leaf holding a copy of ``data``: ``torch.tensor`` in every respect but the class.

    Raises ``UnsupportedError`` for a tensor of a subclass that works below torch's autograd (DTensor, fake tensors).
    """
    if isinstance(data, torch.Tensor):
        note_cut("conversion", "tensor", data)
        with DisableTorchFunctionSubclass():
            made = plain_alias(data).to(dtype=dtype, device=device, copy=True)
    else:
        made = torch.tensor(data, dtype=dtype, device=device)
    return _leaf(made, "tensor").requires_grad_(requires_grad)


def _handlers() -> dict[Callable[..., Any], Callable[..., Any]]:
    """torch's functions that the class answers itself, also when they are called as functions: ``torch.Tensor.backward(x)``."""
    found: dict[Callable[..., Any], Callable[..., Any]] = {}
    for name, ours in vars(Tensor).items():
        theirs = getattr(torch.Tensor, name, None)
        if isinstance(ours, property) and theirs is not None and hasattr(theirs, "__get__"):
            assert ours.fget is not None
            found[theirs.__get__] = ours.fget
            if ours.fset is not None:
                found[theirs.__set__] = ours.fset
        elif callable(ours) and callable(theirs) and name not in ("__torch_function__", "__module__", "__doc__"):
            found[theirs] = ours
    for function, method in ((torch.detach, Tensor.detach), (torch.detach_, Tensor.detach_)):
        found[function] = method
    found[torch.ops.aten.detach] = found[torch.ops.aten.detach.default] = Tensor.detach
    return found


#: ``tracer.install`` adds what the floors above answer: ``backward`` and ``torch.autograd``.
HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = _handlers()
