"""``nn.zero_grad``: clear the gradients of anything that holds tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from nn.errors import ArgumentError
from tracer.tracked_tensor import zero_grad_of


def zero_grad(target: Any, set_to_none: bool = True) -> None:
    """Clear the gradients of ``target``.

    It is a tensor, a module, an optimiser, or an iterable or mapping of such, however deep. With ``set_to_none=False``
    gradients that exist are filled with zeros in place, without history, and stay the same tensors. Raises
    ``ArgumentError`` for anything else; what came before it in a collection is then cleared already.
    """
    if isinstance(target, torch.Tensor):
        zero_grad_of(target, set_to_none)
    elif isinstance(target, torch.nn.Module):
        for parameter in target.parameters():
            zero_grad_of(parameter, set_to_none)
    elif isinstance(target, torch.optim.Optimizer):
        target.zero_grad(set_to_none)
    elif isinstance(target, Mapping):
        zero_grad(target.values(), set_to_none)
    elif isinstance(target, Iterable) and not isinstance(target, (str, bytes)):
        for item in target:
            zero_grad(item, set_to_none)
    else:
        raise ArgumentError(
            f"zero_grad() takes tensors, modules, optimisers and collections of them, not {type(target).__name__}"
        )
