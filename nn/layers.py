"""Every module of torch on tracked parameters: ``nn.Linear`` is an ``nn.Module`` and a ``torch.nn.Linear``."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from nn.module import Module as _Base
from nn.tracking import track

if TYPE_CHECKING:
    # What type checkers see: torch's own classes, of which those made below are subclasses.
    from torch.nn.modules import *  # noqa: F403


class _Inserting:
    """``insert`` of the containers, where torch writes past ``add_module``."""

    def insert(self, index: int, module: torch.nn.Module) -> Any:
        return super().insert(index, track(module))  # type: ignore[misc]


def _derive(theirs: type[torch.nn.Module], made: dict[type, type]) -> type:
    """The tracked subclass of one of torch's modules; its bases mirror torch's, so ``nn.LSTM`` is an ``nn.RNNBase``."""
    if theirs in made:
        return made[theirs]
    public = [base for base in theirs.__bases__ if getattr(torch.nn, base.__name__, None) is base]
    mixins = (_Inserting,) if "insert" in vars(theirs) else ()
    bases = (*(_derive(base, made) for base in public or [torch.nn.Module]), *mixins, theirs)
    body = {"__module__": "nn", "__doc__": theirs.__doc__}
    ours = made[theirs] = types.new_class(theirs.__name__, bases, exec_body=lambda namespace: namespace.update(body))
    becomes = vars(theirs).get("cls_to_become")
    if becomes is not None:  # what a lazy module turns into once it knows its shapes
        ours.cls_to_become = _derive(becomes, made)  # type: ignore[attr-defined]
    return ours


def _derive_all() -> dict[str, type]:
    made: dict[type, type] = {torch.nn.Module: _Base}
    found = {name: getattr(torch.nn, name) for name in dir(torch.nn)}
    return {
        name: _derive(value, made)
        for name, value in found.items()
        # Subclassing what torch deprecates would warn.
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and not hasattr(value, "__deprecated__")
    }


_LAYERS = _derive_all()
globals().update(_LAYERS)
__all__ = list(_LAYERS)
