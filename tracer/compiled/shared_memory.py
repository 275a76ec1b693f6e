"""Tensors that share memory: a graph takes each of its inputs for its own, and each result of a write for one value an element."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ops_registry.torch_private import storage_key
from tracer.compiled.capture import Captured
from tracer.compiled.overlaps import may_overlap, place_of
from tracer.errors import CaptureError


def refuse_shared_memory(captured: Captured, offered: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Raise ``CaptureError`` where the step writes into memory that it reads under another name."""
    memory = [storage_key(offered[i]) for i in captured.used]
    if len(set(memory)) == len(memory):
        return
    key_of = dict(zip(captured.used, memory, strict=True))
    for position in captured.written:
        for other, key in key_of.items():
            if (
                key == key_of[position]
                and other != position
                and may_overlap(place_of(offered[position]), place_of(offered[other]))
            ):
                name, another = (_name_of(captured, len(offered), names, i) for i in (position, other))
                raise CaptureError(
                    f"the step writes into {name}, which shares its memory with {another}. {_remedy(name)}"
                )


def name_at(names: Sequence[str], position: int) -> str:
    """The name of an input; of those behind the named ones it is not known what they are called."""
    return names[position] if position < len(names) else "a tensor from elsewhere"


def _name_of(captured: Captured, offered: int, names: Sequence[str], position: int) -> str:
    """The same, also of the gradients, which stand last."""
    at = position - (offered - len(captured.given))
    return name_at(names, position) if at < 0 else f".grad of {name_at(names, captured.given[at])}"


def _remedy(name: str) -> str:
    if name.startswith(".grad"):
        return "Put a copy there before the call (x.grad = x.grad.clone())."
    return "Give it a copy (x.clone())."
