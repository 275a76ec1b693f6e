"""Looking up rows of a table: embedding, embedding_bag, one_hot."""

import torch

from ops_registry.declare import no_gradient
from ops_registry.registry import backward
from ops_registry.shared.picking import add_at, add_slices
from ops_registry.shared.precision import wide
from ops_registry.shared.recorded import recorded

no_gradient(torch._C._nn.one_hot)


@backward(torch.embedding)
def embedding(grad, weight_shape, indices, padding_idx, scale_grad_by_freq, sparse):
    if sparse:
        return torch.ops.aten.embedding_sparse_backward(grad, indices, weight_shape[0], padding_idx, scale_grad_by_freq)
    return torch.ops.aten.embedding_dense_backward(grad, indices, weight_shape[0], padding_idx, scale_grad_by_freq)


@backward(torch.ops.aten.embedding_dense_backward, linear=True)
def embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq):
    rows = torch.embedding(grad, indices)
    if scale_grad_by_freq:
        rows = rows / _frequency(indices, num_weights).unsqueeze(-1)
    return rows if padding_idx < 0 else rows.masked_fill((indices == padding_idx).unsqueeze(-1), 0)


def _frequency(indices, size):
    """How often each of ``indices`` occurs among them."""
    return torch.bincount(indices.reshape(-1), minlength=size)[indices]


# embedding_bag: row b of the result is the sum, mean or maximum of the rows of the table that bag b names

_SUM, _MEAN, _MAX = range(3)


def _forward(
    weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx
):
    """The op, and what its kernel noted for its own backward: the bag of each index, their sizes, and where each maximum came from."""
    rows = weight.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        options = bool(scale_grad_by_freq), mode or 0, bool(sparse), per_sample_weights, bool(include_last_offset)
        return torch.embedding_bag(weight, indices, offsets, *options, padding_idx), {}  # torch says what is wrong
    result = torch._embedding_bag(
        weight,
        *_by_address(indices, offsets),
        bool(scale_grad_by_freq),
        mode or 0,
        False,
        None if per_sample_weights is None else per_sample_weights.contiguous(),
        bool(include_last_offset),
        _none(padding_idx, weight.shape),
    )
    return result, {"noted": result[1:3], "chosen": result[3]}


def _by_address(*indices):
    """The kernels read indices and offsets by address and ignore their strides."""
    return [i.contiguous() for i in indices]


def _none(padding_idx, weight_shape):
    """The index that stands for no row; -1 if there is none such."""
    return -1 if padding_idx is None else padding_idx % weight_shape[0]


def _bags(indices, offsets, include_last_offset, none):
    """The bag that each index is in, how many rows each bag takes, and which indices take one (None: all)."""
    starts = (offsets[:-1] if include_last_offset else offsets).contiguous()
    order = torch.arange(indices.numel(), dtype=starts.dtype, device=indices.device)
    bag = torch.searchsorted(starts, order, right=True) - 1
    taken = None if none < 0 else indices != none
    counted = torch.ones_like(indices) if taken is None else taken.to(indices.dtype)
    return bag, torch.zeros_like(starts, dtype=indices.dtype).index_add(0, bag, counted), taken


@backward(torch.embedding_bag, wrt="weight", forward=_forward)
def embedding_bag_weight(
    grad, weight_shape, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx,
    noted, chosen,
):  # fmt: skip
    none = _none(padding_idx, weight_shape)
    if not (sparse or scale_grad_by_freq or mode == _MAX or recorded()):
        # The kernel does without a row of the table for each index. (It scales wrongly, and cannot be differentiated.)
        indices, offsets = _by_address(indices, offsets)
        return torch.ops.aten._embedding_bag_backward(
            grad, indices, offsets, *noted, chosen, weight_shape[0], False, mode or 0, False, per_sample_weights, none
        )
    bag, size, taken = _bags(indices, offsets, include_last_offset, none)
    if mode == _MAX:
        return add_at(torch.where((size > 0).unsqueeze(1), grad, 0), chosen, weight_shape, 0)
    rows = grad.index_select(0, bag)
    if mode == _MEAN:
        rows = rows / size[bag].clamp(min=1).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        rows = rows / _frequency(indices, weight_shape[0]).unsqueeze(1)
    if taken is not None:
        rows = rows.masked_fill(~taken.unsqueeze(1), 0)
    if sparse:
        return torch.sparse_coo_tensor(indices.unsqueeze(0), rows, weight_shape, check_invariants=False)
    return add_slices(rows, indices, weight_shape, 0)


@backward(torch.embedding_bag, wrt="per_sample_weights", linear=True)
def embedding_bag_per_sample_weights(grad, weight, indices, offsets, include_last_offset, padding_idx):
    bag, _, taken = _bags(indices, offsets, include_last_offset, _none(padding_idx, weight.shape))
    products = (wide(grad).index_select(0, bag) * weight.index_select(0, indices)).sum(1)
    return products if taken is None else products.masked_fill(~taken, 0)
