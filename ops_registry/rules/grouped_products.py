"""Matrix products of groups, ``F.grouped_mm``: a matrix beside a stack of them is cut into as many pieces at ``offs``.

Whatever the ranks, and so whichever dimension is cut, the gradients are grouped products again, cut at the same places.
"""

import torch

from ops_registry.registry import backward


@backward(torch._grouped_mm, wrt=("input", "mat2"))
def grouped_mm(grad, input, mat2, offs, needs):
    grad = grad.to(input.dtype).contiguous()
    by_input = by_mat2 = None
    if needs[0]:
        by_input = torch._grouped_mm(grad, mat2.mT, offs)
        if input.dim() == 2:
            by_input = used(by_input, offs, 0 if mat2.dim() == 3 else 1)
    if needs[1]:
        by_mat2 = torch._grouped_mm(input.mT, grad, offs)
        if mat2.dim() == 2:
            by_mat2 = used(by_mat2, offs, 1 if input.dim() == 3 else 0)
    return by_input, by_mat2


def used(product, offs, dim):
    """``product`` with zeros beyond the last cut, where the kernel leaves what was in memory."""
    place = torch.arange(product.shape[dim], device=product.device)
    return torch.where(place.unsqueeze(1 - dim) < offs[-1], product, 0)
