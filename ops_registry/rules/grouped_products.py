"""Matrix products of groups, ``F.grouped_mm``: a matrix beside a stack of them is cut into as many pieces at ``offs``.

Whatever the ranks, and so whichever dimension is cut, the gradients are grouped products again, cut at the same places.
"""

import torch

from ops_registry.registry import backward


@backward(torch._grouped_mm, wrt="input", linear=True)
def grouped_mm_input(grad, input_shape, input_dtype, mat2, offs):
    product = torch._grouped_mm(in_kernel_form(grad, input_dtype), mat2.mT, offs)
    return product if len(input_shape) == 3 else used(product, offs, 0 if mat2.dim() == 3 else 1)


@backward(torch._grouped_mm, wrt="mat2", linear=True)
def grouped_mm_mat2(grad, input, mat2_shape, offs):
    product = torch._grouped_mm(input.mT, in_kernel_form(grad, input.dtype), offs)
    return product if len(mat2_shape) == 3 else used(product, offs, 1 if input.dim() == 3 else 0)


def in_kernel_form(grad, dtype):
    """The kernel wants rows next to each other, and one dtype throughout, though its result may be wider."""
    return grad.to(dtype).contiguous()


def used(product, offs, dim):
    """``product`` with zeros beyond the last cut, where the kernel leaves what was in memory."""
    place = torch.arange(product.shape[dim], device=product.device)
    return torch.where(place.unsqueeze(1 - dim) < offs[-1], product, 0)
