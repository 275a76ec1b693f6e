"""Values that depend on a custom Function's inputs without a record of how.

Inside ``forward`` nothing is recorded, so an intermediate that is saved there looks like a constant to a second derivative; torch takes it
for one, and answers with None or a wrong number. Here such values are followed while the user's code runs.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ops_registry import registry
from ops_registry.binding import Kind
from ops_registry.formula import Formula
from ops_registry.rule import LISTS
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.asking import quiet
from tracer.recording.call import looked_into
from tracer.recording.inplace import is_in_place, note_unrecorded_write
from tracer.recording.parents import DIFFERENTIABLE
from tracer.tracked_tensor import Tensor

#: Calls that make no new value: an alias made for recording must not be put in the place of what they are asked about.
_BOOKKEEPING = frozenset(
    {"detach", "detach_", "requires_grad_", "__get__", "__set__", "backward", "grad", "register_hook"}
)

#: Calls that run as they came where no gradient is wanted.
_RUN_AS_THEY_ARE = {Kind.RULE, Kind.IN_PLACE, Kind.DECOMPOSITION, Kind.NO_GRADIENT}

_OURS = (Tensor,)


class DependencyTracker(TorchFunctionMode):
    """While it is active, follows which tensors depend on others: on ``sources`` and on all that have a history.

    ``refuse(tensor)``, where given, makes the alias that a recorded call gets in the place of a dependent tensor without history.
    """

    def __init__(self, sources: Iterable[torch.Tensor], refuse: Callable[[torch.Tensor], torch.Tensor] | None = None):
        super().__init__()
        #: By their ids. A reference that is dead tells that the id is another's now.
        self._dependent: dict[int, weakref.ref[torch.Tensor]] = {id(source): weakref.ref(source) for source in sources}
        self._refuse = refuse

    def __enter__(self) -> DependencyTracker:
        quiet.modes += 1
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        quiet.modes -= 1
        super().__exit__(*exc)

    def depends(self, value: Any) -> bool:
        """Whether a tensor is one of those followed."""
        return isinstance(value, torch.Tensor) and self._follows(value)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        dependent = self._any(args) or (kwargs is not None and self._any(kwargs.values()))
        if types == _OURS and args and not torch.is_grad_enabled():
            spelling = registry.TABLE.get(func)
            if spelling is not None and spelling.kind in _RUN_AS_THEY_ARE and not looked_into():
                # A call of which nothing is recorded, without the way through interception: what comes of it is plain.
                with DisableTorchFunctionSubclass():
                    result = spelling.function(*args, **kwargs) if kwargs else spelling.function(*args)
                    if spelling.kind is Kind.IN_PLACE:
                        note_unrecorded_write(spelling.rule, args[0])
                if dependent and not _is_constant(func):
                    self._mark(args[0] if spelling.inplace else result)
                return result
        if dependent and self._refuse is not None and torch.is_grad_enabled() and _makes_a_value(func):
            args, kwargs = self._refused(args), self._refused(kwargs or {})
        quiet.modes -= 1  # inside a call torch has taken this mode away
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        finally:
            quiet.modes += 1
        if dependent and not _is_constant(func):
            self._mark(result)
            if args and is_in_place(func):
                self._mark(args[0])
            if kwargs:
                self._mark(kwargs.get("out"))
        return result

    def _follows(self, tensor: torch.Tensor) -> bool:
        reference = self._dependent.get(id(tensor))
        return reference is not None and reference() is tensor

    def _any(self, nest: Iterable[Any]) -> bool:
        followed = self._dependent.get
        for value in nest:
            if isinstance(value, torch.Tensor):
                reference = followed(id(value))
                if reference is not None and reference() is value:
                    return True
                if type(value) is Tensor and value._node is not None:
                    return True
            elif (isinstance(value, LISTS) and self._any(value)) or (
                isinstance(value, dict) and self._any(value.values())
            ):
                return True
        return False

    def _mark(self, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            if result.dtype in DIFFERENTIABLE:
                self._dependent[id(result)] = weakref.ref(result)
        elif isinstance(result, LISTS):
            for item in result:
                self._mark(item)

    def _refused(self, nest: Any) -> Any:
        if isinstance(nest, torch.Tensor):
            unrecorded = self._follows(nest) and getattr(nest, "_node", None) is None and not nest.requires_grad
            return self._refuse(nest) if unrecorded and self._refuse is not None else nest
        if isinstance(nest, dict):
            return {key: self._refused(value) for key, value in nest.items()}
        return type(nest)(map(self._refused, nest)) if type(nest) in (tuple, list) else nest


def _makes_a_value(func: Callable[..., Any]) -> bool:
    return getattr(func, "__name__", "") not in _BOOKKEEPING


@functools.cache
def _is_constant(func: Callable[..., Any]) -> bool:
    """Whether the results of a call have no derivative, or one that is zero throughout (``sign``, ``floor``)."""
    rule = registry.lookup(func)
    if rule is None:
        return False
    return rule.no_gradient or (bool(rule.formulas) and all(map(_is_zero, rule.formulas)))


def _is_zero(formula: Formula) -> bool:
    # What a formula that asks for the cotangent alone says of one, it says of all.
    return formula.parameters == ("grad",) and formula.function(torch.zeros(())) is None
