"""Values that depend on a custom Function's inputs without a record of how.

Inside ``forward`` nothing is recorded, so an intermediate that is saved there looks like a constant to a second derivative; torch takes it
for one, and answers with None or a wrong number. Here such values are followed while the user's code runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from ops_registry import registry
from ops_registry.formula import Formula
from tracer.recording.inplace import is_in_place
from tracer.recording.parents import DIFFERENTIABLE
from tracer.tracked_tensor import Tensor

#: Calls that make no new value: an alias made for recording must not be put in the place of what they are asked about.
_BOOKKEEPING = frozenset(
    {"detach", "detach_", "requires_grad_", "__get__", "__set__", "backward", "grad", "register_hook"}
)


class DependencyTracker(TorchFunctionMode):
    """While it is active, follows which tensors depend on others: on ``sources`` and on all that have a history.

    ``refuse(tensor)``, where given, makes the alias that a recorded call gets in the place of a dependent tensor without history.
    """

    def __init__(self, sources: Iterable[torch.Tensor], refuse: Callable[[torch.Tensor], torch.Tensor] | None = None):
        super().__init__()
        self._dependent: Any = WeakIdKeyDictionary()
        self._refuse = refuse
        for source in sources:
            self._dependent[source] = True

    def depends(self, value: Any) -> bool:
        """Whether a tensor is one of those followed."""
        return isinstance(value, torch.Tensor) and value in self._dependent

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        dependent = self._any((args, kwargs))
        if dependent and self._refuse is not None and torch.is_grad_enabled() and name not in _BOOKKEEPING:
            args, kwargs = self._refused(args), self._refused(kwargs)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if dependent and not _is_constant(func):
            self._mark(result)
            if args and is_in_place(func):
                self._mark(args[0])
            self._mark(kwargs.get("out"))
        return result

    def _any(self, nest: Any) -> bool:
        if isinstance(nest, torch.Tensor):
            return nest in self._dependent or (type(nest) is Tensor and nest._node is not None)
        if isinstance(nest, dict):
            nest = nest.values()
        elif not isinstance(nest, tuple | list):
            return False
        return any(map(self._any, nest))

    def _mark(self, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            if result.dtype in DIFFERENTIABLE:
                self._dependent[result] = True
        elif isinstance(result, tuple | list):
            for item in result:
                self._mark(item)

    def _refused(self, nest: Any) -> Any:
        if isinstance(nest, torch.Tensor):
            unrecorded = nest in self._dependent and getattr(nest, "_node", None) is None and not nest.requires_grad
            return self._refuse(nest) if unrecorded and self._refuse is not None else nest
        if isinstance(nest, dict):
            return {key: self._refused(value) for key, value in nest.items()}
        return type(nest)(map(self._refused, nest)) if type(nest) in (tuple, list) else nest


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
