"""Constants that hold the same numbers though they lie in different memory: a mask, or positions, made anew in each pass."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

#: So many elements tell most constants apart, so that the rest of them need not be read.
_FIRST = 64
#: With so many others that begin alike a constant is compared.
_COMPARED = 8


class Constants:
    """The constants met so far, by where they lie. Each is looked at once."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._alike: dict[Any, list[tuple[Any, torch.Tensor]]] = defaultdict(list)

    def place_of(self, place: Any, tensor: torch.Tensor) -> Any:
        """The place where the same numbers were met first, for a plain tensor that lies at ``place``."""
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = self._first_place(place, tensor)
        return known

    def _first_place(self, place: Any, tensor: torch.Tensor) -> Any:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            return place
        with torch.no_grad():
            flat = tensor.resolve_conj().resolve_neg().reshape(-1)
            beginning = bytes(_bits(flat[:_FIRST]).tolist())
            alike = self._alike[tensor.dtype, tensor.device, tensor.shape, beginning]
            for other, numbers in alike:
                if torch.equal(_bits(numbers.reshape(-1)), _bits(flat)):
                    return other
        if len(alike) < _COMPARED:
            alike.append((place, flat))
        return place


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """Numbers as bytes: 0.0 is not -0.0, and nan is itself."""
    return flat.contiguous().view(torch.uint8)
