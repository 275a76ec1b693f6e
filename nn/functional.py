"""``torch.nn.functional``, and the functions that torch does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nn.im2col import col_to_img, img_to_col

if TYPE_CHECKING:
    from torch.nn.functional import *  # noqa: F403

__all__ = ["col_to_img", "img_to_col"]


def __getattr__(name: str) -> Any:
    try:
        return getattr(torch.nn.functional, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn.functional)})
