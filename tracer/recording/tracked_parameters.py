"""A parameter of torch's becomes a tracked one and stays the same object, whatever holds it."""

from __future__ import annotations

from typing import Any

import torch

from tracer.errors import UnsupportedError
from tracer.tracked_tensor import Tensor, mark_as_parameter, track_in_place


class UninitializedParameter(torch.nn.UninitializedParameter):
    """A parameter of a lazy module, which has no shape yet: tracked from the moment that it gets one."""

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """As in torch; the parameter is then a tracked leaf."""
        super().materialize(shape, device, dtype)
        track_parameter(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Files hold torch's own classes only.
        return torch.nn.UninitializedParameter, (self.requires_grad,)


def is_trackable(parameter: Any) -> bool:
    """Whether it is of torch's own class: one of another subclass (DTensor) keeps its class."""
    return type(parameter) in _TRACKABLE


def check(parameter: Any) -> None:
    """Raise ``UnsupportedError`` for a parameter that cannot be tracked."""
    if not is_trackable(parameter):
        raise UnsupportedError(
            f"a {type(parameter).__name__} cannot be tracked: parameters of other tensor subclasses keep their own class. Leave the "
            f"module to torch's own autograd, or track it before its parameters become of that class."
        )


def track_parameter(parameter: Any) -> None:
    """Turn one parameter into a tracked one, in place; raises as ``check`` does."""
    if type(parameter) is Tensor:
        return
    check(parameter)
    if isinstance(parameter, torch.nn.UninitializedParameter):
        parameter.__class__ = UninitializedParameter
        return
    mark_as_parameter(track_in_place(parameter))


_TRACKABLE = frozenset(
    {torch.nn.Parameter, torch.Tensor, Tensor, torch.nn.UninitializedParameter, UninitializedParameter}
)
