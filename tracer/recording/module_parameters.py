"""Where torch replaces the parameters of a module by others, tracked ones stay tracked: ``to_empty``, loading by assignment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tracer.tracked_tensor import Tensor, mark_as_parameter, track_in_place, tracked_alias


class _Tracked:
    """A function over parameters, which makes a tracked tensor of a tracked parameter also where torch's calls give a plain one."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        self.function = function

    def __call__(self, tensor: torch.Tensor) -> Any:
        made = self.function(tensor)
        return tracked_alias(made) if type(tensor) is Tensor and type(made) is torch.Tensor else made


def staying_tracked(apply: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """``Module._apply``, which leaves tracked parameters tracked: ``to_empty`` makes new ones by ``empty_like``, in plain tensors."""

    @functools.wraps(apply)
    def applied(self: torch.nn.Module, fn: Callable[[torch.Tensor], Any], recurse: bool = True) -> torch.nn.Module:
        return apply(self, fn if isinstance(fn, _Tracked) else _Tracked(fn), recurse)

    return applied


def loading_tracked(load: Callable[..., None]) -> Callable[..., None]:
    """``Module._load_from_state_dict``, after which tracked parameters are tracked: ``assign=True`` makes new ones of plain tensors.

    A parameter that comes in the dictionary as such is somebody else's object, and stays what it is.
    """

    @functools.wraps(load)
    def loaded(self: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        tracked = [name for name, parameter in self._parameters.items() if isinstance(parameter, Tensor)]
        load(self, state_dict, prefix, *args, **kwargs)
        for name in tracked:
            parameter = self._parameters[name]
            if type(parameter) is torch.nn.Parameter and parameter is not state_dict.get(prefix + name):
                mark_as_parameter(track_in_place(parameter))

    return loaded
