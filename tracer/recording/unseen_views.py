"""Views that nobody has noted: they were made of a plain tensor, by calls that never reach interception, before it became tracked.

A tensor does not know its views. But each view holds it, as a wrapper of ``torch.vmap`` holds what lies beneath, and torch counts the
holders of a tensor. Where all are known there is nothing to look for: that is the usual case, and costs a few calls whatever the process
holds. Otherwise they are looked for among the objects of the garbage collector, the youngest first, until each holder is found.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from ops_registry.torch_private import is_batched, is_followed, is_functional, unwrapped, use_count
from tracer.errors import UnsupportedError
from tracer.recording.levels import physical

#: A tensor is mostly written soon after it was made, and so were its views: the two young generations hold a few thousand objects.
_YOUNGEST_FIRST = (0, 1, None)


def find_unseen(root: torch.Tensor, known: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The views of ``root``, and what stands for it or for one of them inside levels of ``torch.vmap``, that are not in ``known``.

    Raises ``UnsupportedError`` where there is one that ``gc.freeze`` hides.
    """
    found: list[torch.Tensor] = []
    if _all_known(root, known):
        return found
    seen = {id(root), *map(id, known)}
    for generation in _YOUNGEST_FIRST:
        for thing in gc.get_objects(generation):
            if issubclass(type(thing), torch.Tensor) and id(thing) not in seen:
                inner = physical(thing)
                if inner is root or inner._base is root:
                    seen.add(id(thing))
                    found.append(thing)
        if _all_known(root, [*known, *found]):
            return found
    if gc.get_freeze_count() and not is_functional(root):  # a capture freezes, and what it makes is younger
        raise UnsupportedError(
            f"a recorded write goes into the memory of a plain tensor of shape {tuple(root.shape)} that others hold, perhaps views made "
            f"before gc.freeze(), which hides them: their history would be wrong. Write into a clone, or call gc.unfreeze() first."
        )
    return found  # what is left are holders in C++ alone, which Python cannot reach


def _all_known(root: torch.Tensor, known: Sequence[torch.Tensor]) -> bool:
    """Whether ``root``, and what lies between it and ``known``, is held by ``known`` and by Python, and by nobody else."""
    held: dict[int, tuple[torch.Tensor, set[int]]] = {id(root): (root, set())}
    for tensor in known:
        while is_batched(tensor) or is_followed(tensor):
            outer, tensor = tensor, unwrapped(tensor)
            held.setdefault(id(tensor), (tensor, set()))[1].add(id(outer))
        if tensor._base is root:
            held[id(root)][1].add(id(tensor))
            held.setdefault(id(tensor), (tensor, set()))
    # Python's own hold counts once, however many names an object has there.
    return all(use_count(tensor) <= 1 + len(holders) for tensor, holders in held.values())
