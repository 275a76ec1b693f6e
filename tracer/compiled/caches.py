"""Results that ``functools.lru_cache`` and ``functools.cache`` keep, where no walk sees them."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterable
from typing import Any

import torch

from ops_registry.torch_private import is_functional, tree_leaves


def forget_made(cache: Any) -> None:
    """Empty a cache that has kept a tensor of a step that was captured: it has no values, and is of no use to anybody else."""
    leaves = tree_leaves(gc.get_referents(cache))
    if any(isinstance(leaf, torch.Tensor) and is_functional(leaf) for leaf in leaves):
        cache.cache_clear()


def forget_made_by(codes: Iterable[tuple[types.CodeType, dict[str, Any], bool]]) -> None:
    """The same for the caches in front of functions that have run: each by its code and its globals."""
    for code, known, _ in codes:
        first, *rest = getattr(code, "co_qualname", code.co_name).split(".")
        found = known.get(first)
        for name in rest:
            found = vars(found).get(name) if isinstance(found, type) else None
        if isinstance(found, functools._lru_cache_wrapper):
            forget_made(found)
