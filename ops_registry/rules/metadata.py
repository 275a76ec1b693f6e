"""Questions about a tensor itself: nothing is computed, no gradient flows, no new tensor is returned."""

import torch

from ops_registry.declare import no_gradient

no_gradient(
    torch.Tensor.dim,
    torch.Tensor.size,
    torch.Tensor.stride,
    torch.Tensor.numel,
    torch.Tensor.storage_offset,
    torch.Tensor.element_size,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.is_contiguous,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.is_conj,
    torch.Tensor.is_neg,
    torch.Tensor.is_inference,
    torch.Tensor.is_signed,
    torch.Tensor.is_pinned,
    torch.Tensor.is_shared,
    torch.Tensor.is_same_size,
    torch.Tensor.is_set_to,
    torch.Tensor.get_device,
    torch.result_type,
    reads_values=False,
)

# The values themselves, as numbers
no_gradient(torch.Tensor.item, torch.Tensor.tolist)

for _name in (
    "shape",
    "dtype",
    "device",
    "layout",
    "ndim",
    "itemsize",
    "nbytes",
    "is_cpu",
    "is_cuda",
    "is_meta",
    "is_mps",
    "is_xpu",
    "is_quantized",
    "is_sparse",
    "is_nested",
    "is_mkldnn",
    "_version",
    "_base",  # existing objects: never marked, and part of no history
    "_grad",
):
    no_gradient(getattr(torch.Tensor, _name).__get__, reads_values=False)
