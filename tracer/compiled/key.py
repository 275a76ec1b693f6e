"""What a graph was made for, beside what the step reaches: its arguments, and the state of this thread that changes what calls do."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.registry import changes
from ops_registry.scopes import rules_in_force
from ops_registry.torch_private import DisableTorchFunctionSubclass, storage_key


def key_of_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What the code of a step may ask of a tensor without reading its values. Called with interception off."""
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def key_of_thread() -> tuple[Any, ...]:
    """Rules in force, modes, default dtypes, switches of backends."""
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    return (
        rules_in_force(),
        changes.version,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def key_of_arguments(leaves: list[Any], spec: Any, places: dict[int, int]) -> tuple[Any, ...]:
    """Structure and leaves: tensors by what is known without values and by which others share their memory, the rest by value.

    ``places``: by id, the positions of the tensors that the step reaches, which may be given as arguments too.
    """
    seen: dict[int, int] = {}
    parts: list[Any] = [spec]
    with DisableTorchFunctionSubclass():
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                same = seen.setdefault(id(leaf), position)
                shared = seen.setdefault(storage_key(leaf), position)
                parts.append((*key_of_tensor(leaf), leaf.requires_grad, same, shared, places.get(id(leaf))))
            else:
                parts.append((type(leaf), leaf))
    return tuple(parts)
