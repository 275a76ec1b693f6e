"""Half precision made wide for what adds up many numbers."""

from __future__ import annotations

import torch

#: The dtypes whose numbers are rounded to 8 or 11 significant bits.
HALF = (torch.float16, torch.bfloat16)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch's kernels compute what they round to ``dtype``: float32 for half precision."""
    return torch.float32 if dtype in HALF else dtype


def wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in a dtype in which sums over it are exact enough: float32 for half precision."""
    return x.float() if x.dtype in HALF else x
