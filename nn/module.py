"""``nn.Module``: ``torch.nn.Module`` whose parameters are tracked, however they come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from nn.tracking import track
from tracer.recording.tracked_parameters import track_parameter

if TYPE_CHECKING:
    from typing_extensions import Self


class Module(torch.nn.Module):
    """The base of your own modules: parameters assigned to it become tracked, and so do those of a stock module.

    They stay the same objects. What a stock container gets after it was assigned stays torch's (its gradients are right
    all the same); the containers of ``nn`` track that too. A method that gives the parameters other values or another
    class (moving, loading, unpickling) leaves them tracked. Everything else is ``torch.nn.Module``.

    Raises ``tracer.UnsupportedError`` for parameters of other tensor subclasses (DTensor).
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Module):
            track(value)
        super().__setattr__(name, value)

    def register_parameter(self, name: str, param: Any) -> None:
        """``torch.nn.Module.register_parameter``; the parameter becomes tracked."""
        if isinstance(param, torch.nn.Parameter):
            track_parameter(param)
        super().register_parameter(name, param)

    def add_module(self, name: str, module: torch.nn.Module | None) -> None:
        """``torch.nn.Module.add_module``; the parameters of ``module`` become tracked."""
        if isinstance(module, torch.nn.Module):
            track(module)
        super().add_module(name, module)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """``torch.nn.Module.load_state_dict``; parameters that ``assign`` brings in become tracked."""
        result = super().load_state_dict(state_dict, strict, assign)
        track(self)
        return result

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # From the meta device and to it torch makes new parameters.
        return track(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Files hold plain parameters.
        super().__setstate__(state)
        track(self)
