"""``nn.track``: the parameters of a stock ``torch.nn.Module`` become tracked, each staying the same object."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

import tracer
from tracer.errors import UnsupportedError

M = TypeVar("M", bound=torch.nn.Module)


def track(module: M) -> M:
    """Turn every parameter of ``module`` and its submodules into a tracked one, in place, and return ``module``.

    The objects stay the same, so optimisers that hold them, ties between modules and the keys of ``state_dict`` stay as they are;
    ``.grad`` and hooks are kept. Buffers stay plain. Tracking twice changes nothing.

    Raises ``UnsupportedError`` for lazy parameters that have no shape yet and for parameters of other tensor subclasses (DTensor); the
    module is then as it was.
    """
    parameters = list(module.parameters())
    for parameter in parameters:
        if type(parameter) not in (torch.nn.Parameter, torch.Tensor, tracer.Tensor):
            raise UnsupportedError(
                f"nn.track() met a {type(parameter).__name__}. Lazy parameters get their shape from a first forward pass: run one first."
                if isinstance(parameter, torch.nn.parameter.UninitializedParameter)
                else f"nn.track() met a {type(parameter).__name__}: parameters of other tensor subclasses cannot be tracked."
            )
    for parameter in parameters:
        if type(parameter) is not tracer.Tensor:
            _track(parameter)
    return module


def _track(parameter: Any) -> None:
    wanted = parameter.requires_grad
    hooks, post_hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    parameter.requires_grad_(False)
    # Assigning the class keeps the object, and with it every reference that optimisers and other modules hold.
    parameter.__class__ = tracer.Tensor
    parameter._is_param = True
    if wanted:
        parameter.requires_grad_(True)
        extras = parameter._node.extra()
        # The dictionaries themselves, so that handles given out before still remove their hooks.
        extras.hooks = hooks if hooks is not None else extras.hooks
        extras.post_hooks = post_hooks if post_hooks is not None else extras.post_hooks
