"""``nn.track``: the parameters of a stock ``torch.nn.Module`` become tracked, each staying the same object."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

import tracer
from ops_registry.sites import name_modules
from tracer.errors import UnsupportedError
from tracer.recording.distributed import refuse_wrapped
from tracer.tracked_tensor import mark_as_parameter, track_in_place

M = TypeVar("M", bound=torch.nn.Module)


class UninitializedParameter(torch.nn.UninitializedParameter):
    """A parameter of a lazy module, which has no shape yet: tracked from the moment that it gets one."""

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """As in torch; the parameter is then a tracked leaf."""
        super().materialize(shape, device, dtype)
        track_parameter(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Files hold torch's own classes only.
        return torch.nn.UninitializedParameter, (self.requires_grad,)


def track(module: M) -> M:
    """Turn every parameter of ``module`` and its submodules into a tracked one, in place, and return ``module``.

    The objects stay the same, so optimisers that hold them, ties between modules and the keys of ``state_dict`` stay as
    they are; ``.grad`` and hooks are kept. Buffers stay plain. Lazy parameters are tracked once the first forward pass
    gives them a shape. Tracking twice changes nothing.

    Raises ``UnsupportedError`` for parameters of other tensor subclasses (DTensor), and for a module that is wrapped for training in
    several processes (DistributedDataParallel); the module is then as it was.
    """
    refuse_wrapped(module)
    parameters = list(module.parameters())
    for parameter in parameters:
        check(parameter)
    for parameter in parameters:
        track_parameter(parameter)
    name_modules(module)
    return module


def check(parameter: Any) -> None:
    """Raise ``UnsupportedError`` for a parameter that cannot be tracked."""
    if type(parameter) not in _TRACKABLE:
        raise UnsupportedError(
            f"a {type(parameter).__name__} cannot be tracked: parameters of other tensor subclasses keep their own class. Leave the "
            f"module to torch's own autograd, or track it before its parameters become of that class."
        )


def track_parameter(parameter: Any) -> None:
    """Turn one parameter into a tracked one, in place; raises as ``check`` does."""
    if type(parameter) is tracer.Tensor:
        return
    check(parameter)
    if isinstance(parameter, torch.nn.UninitializedParameter):
        parameter.__class__ = UninitializedParameter
        return
    mark_as_parameter(track_in_place(parameter))


_TRACKABLE = frozenset(
    {torch.nn.Parameter, torch.Tensor, tracer.Tensor, torch.nn.UninitializedParameter, UninitializedParameter}
)
