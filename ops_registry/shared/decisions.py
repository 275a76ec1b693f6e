"""Decisions by value: which of two ways a formula takes.

Inside ``torch.vmap`` a tensor stands for a batch, and torch refuses to decide by its values. A formula's ways agree wherever both are
right, so the whole batch goes one way: the condition is asked of all of it.
"""

from __future__ import annotations

import torch

from ops_registry.torch_private import is_batched, is_functional, unwrapped


def everywhere(condition: torch.Tensor) -> bool:
    """Whether a boolean tensor is true throughout, for all of a batch."""
    return bool(_whole(condition).all())


def anywhere(condition: torch.Tensor) -> bool:
    """Whether a boolean tensor is true somewhere, for any of a batch."""
    return bool(_whole(condition).any())


def has_values(tensor: torch.Tensor) -> bool:
    """Whether there is anything to decide by: a step that is captured runs on tensors without values."""
    return not is_functional(_whole(tensor))


def _whole(condition: torch.Tensor) -> torch.Tensor:
    while is_batched(condition):
        condition = unwrapped(condition)
    return condition
