"""Old home of helpers that now have one each in ``ops_registry.shared``."""

import torch

from ops_registry.shared.optional import per_result, total

__all__ = ["in_dtype_of", "per_result", "total"]


def in_dtype_of(grad: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``tensors`` in the dtype in which the op ran, where autocast had cast them: kernels want one dtype throughout."""
    return tuple([t if t.dtype == grad.dtype else t.to(grad.dtype) for t in tensors])
