"""Half precision made wide for what adds up many numbers."""

from __future__ import annotations

import torch


def wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in a dtype in which sums over it are exact enough: float32 for half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
