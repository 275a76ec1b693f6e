"""``nn.Parameter``: a tracked leaf that modules register, as they do ``torch.nn.Parameter``."""

from __future__ import annotations

from typing import Any

import torch

import tracer
from tracer.tracked_tensor import is_parameter, mark_as_parameter


class _ParameterMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, tracer.Tensor) and is_parameter(instance)


class Parameter(metaclass=_ParameterMeta):
    """A tracked leaf that shares storage with ``data``, registered by any module it is assigned to.

    It is an instance of ``torch.nn.Parameter`` too.
    """

    def __new__(  # type: ignore[misc]
        cls, data: torch.Tensor | None = None, requires_grad: bool = True
    ) -> tracer.Tensor:
        """A leaf of the shape and dtype of ``data``, without its history; empty where nothing is given.

        Raises ``GradientArgumentError`` for integers and bools that are to require grad.
        """
        return mark_as_parameter(tracer.track(torch.empty(0) if data is None else data.detach(), requires_grad))
