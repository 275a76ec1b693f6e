"""Sparse tensors: made from values, taken apart, converted, and reduced along their entries.

Two functions carry the rules: ``entries`` reads a gradient where a pattern has its entries, and ``like`` puts values there. A gradient
goes to the values that an input stores; where torch treats the input as dense (``mm``), its gradient is dense.
"""

import torch

from ops_registry.declare import no_gradient, passes_through, zero_gradient
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.dimensions import reduced_dims

aten = torch.ops.aten

#: Layouts that store row or column pointers; those of them that are compressed along columns; those that store blocks.
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)

# As in torch, ``_values`` gives the values without their history, ``values`` with it.
no_gradient(torch.Tensor._values)
no_gradient(
    torch.Tensor._indices,
    torch.Tensor.indices,
    torch.Tensor.crow_indices,
    torch.Tensor.col_indices,
    torch.Tensor.ccol_indices,
    torch.Tensor.row_indices,
    torch.Tensor.is_coalesced,
    torch.Tensor.sparse_dim,
    torch.Tensor.dense_dim,
    torch.Tensor._nnz,
    torch.Tensor.is_sparse_csr.__get__,
    reads_values=False,
)


# patterns


def is_sparse(tensor):
    """Whether ``tensor`` stores indices along with its values."""
    return tensor.layout is torch.sparse_coo or tensor.layout in COMPRESSED


def pointers(sparse):
    """The two index tensors of a compressed layout, and the batch shape in front of theirs."""
    if sparse.layout in BY_COLUMN:
        compressed, plain = sparse.ccol_indices(), sparse.row_indices()
    else:
        compressed, plain = sparse.crow_indices(), sparse.col_indices()
    return compressed, plain, compressed.shape[:-1]


def values_shape(sparse):
    """The shape of the values of ``sparse``, in any layout."""
    return (sparse._values() if sparse.layout is torch.sparse_coo else sparse.detach().values()).shape


def blocksize(sparse):
    """Rows and columns of a block; None for a layout without blocks."""
    if sparse.layout not in BLOCKED:
        return None
    lead = sparse.dim() - 2 - sparse.dense_dim() + 1
    return tuple(values_shape(sparse)[lead : lead + 2])


def grid(sparse):
    """The shape of the sparse dimensions, counted in blocks where the layout has them."""
    if sparse.layout is torch.sparse_coo:
        return sparse.shape[: sparse.sparse_dim()] or (1,)
    shape = sparse.shape[: sparse.dim() - sparse.dense_dim()]
    rows, columns = blocksize(sparse) or (1, 1)
    return (*shape[:-2], shape[-2] // rows, shape[-1] // columns)


def coordinates(sparse):
    """The places of the entries in the order of the values: a vector of indices for each dimension of ``grid(sparse)``."""
    if sparse.layout is torch.sparse_coo:
        indices = sparse._indices()
        return tuple(indices) if len(indices) else (indices.new_zeros(indices.shape[1]),)
    compressed, plain, batch = pointers(sparse)
    count = plain.shape[-1]
    order = torch.arange(count, dtype=compressed.dtype, device=compressed.device).expand(plain.shape)
    # Entry k lies in the row whose pointers enclose k.
    pointed = torch.searchsorted(compressed[..., 1:].contiguous(), order.contiguous(), right=True)
    sides = (plain, pointed) if sparse.layout in BY_COLUMN else (pointed, plain)
    lead = []
    for axis, size in enumerate(batch):
        along = torch.arange(size, device=plain.device).view(size, *(1,) * (plain.dim() - axis - 1))
        lead.append(along.expand(plain.shape))
    return tuple([index.reshape(-1) for index in (*lead, *sides)])


def linear(indices, sizes):
    """The row-major number of each place, whose ``indices`` are each below its size."""
    number = 0
    for index, size in zip(indices, sizes, strict=True):
        number = number * size + index.long()
    return number


def keys(sparse):
    """A number for the place of each entry."""
    return linear(coordinates(sparse), grid(sparse))


def flat_values(sparse):
    """The values, with batches and entries in one dimension."""
    values = sparse.values()
    return values if sparse.layout is torch.sparse_coo else values.flatten(0, len(pointers(sparse)[2]))


def coalesced(sparse):
    """``sparse`` with no place stored twice."""
    return sparse.coalesce() if sparse.layout is torch.sparse_coo else sparse


def entries(grad, pattern):
    """The elements of ``grad`` where ``pattern`` has its entries, in the shape of its values; zero where a sparse ``grad`` has none."""
    shape = values_shape(pattern)
    if not is_sparse(grad):
        return _on_grid(grad, pattern)[coordinates(pattern)].reshape(shape)
    if grad.dense_dim() != pattern.dense_dim() or blocksize(grad) != blocksize(pattern):
        return entries(grad.to_dense(), pattern)
    grad = coalesced(grad)
    known, order = keys(grad).sort()
    if known.numel() == 0:
        return torch.zeros(shape, dtype=grad.dtype, device=grad.device)
    wanted = keys(pattern)
    place = torch.searchsorted(known, wanted).clamp(max=known.numel() - 1)
    found = flat_values(grad).index_select(0, order[place])
    missing = (known[place] != wanted).view(-1, *(1,) * (found.dim() - 1))
    return found.masked_fill(missing, 0).reshape(shape)


def _on_grid(dense, pattern):
    """A dense tensor with the dimensions of ``grid(pattern)`` in front and those of a block behind them."""
    if pattern.layout is torch.sparse_coo:
        return dense if pattern.sparse_dim() else dense.unsqueeze(0)
    size = blocksize(pattern)
    if size is None:
        return dense
    batch = len(grid(pattern)) - 2
    split = dense.unflatten(batch + 1, (-1, size[1])).unflatten(batch, (-1, size[0]))
    return split.transpose(batch + 1, batch + 2)


def like(pattern, values):
    """A sparse tensor with these values where ``pattern`` has its entries."""
    if pattern.layout is torch.sparse_coo:
        return aten._sparse_coo_tensor_unsafe(
            pattern._indices(), values, pattern.shape, dtype=values.dtype, is_coalesced=pattern.is_coalesced()
        )
    compressed, plain, _ = pointers(pattern)
    return aten._sparse_compressed_tensor_unsafe(
        compressed, plain, values, pattern.shape, dtype=values.dtype, layout=pattern.layout
    )


def masked(grad, pattern):
    """``grad`` where ``pattern`` has its entries, in the layout of ``pattern``."""
    pattern = coalesced(pattern)
    return like(pattern, entries(grad, pattern))


# from indices and values, and back


@backward(
    aten.sparse_coo_tensor,
    aten.sparse_compressed_tensor,
    aten.sparse_csr_tensor,
    aten.sparse_csc_tensor,
    aten.sparse_bsr_tensor,
    aten.sparse_bsc_tensor,
    wrt="values",
)
def sparse_tensor_values(grad, values, result):
    # ``values`` shares memory with the result: as a saved tensor, a write into either is noticed.
    return entries(grad, result).to(values.device)


@backward(torch.Tensor.values)
def values(grad, input):
    return like(input, grad)


passes_through(torch.Tensor.coalesce)


# conversions


@backward(torch.Tensor.to_dense)
def to_dense(grad, input, masked_grad):
    if input.layout is torch._mkldnn:
        return grad.to_mkldnn()
    if not is_sparse(input):
        return grad
    return masked(grad, input) if masked_grad is not False else _convert_like(grad, input)


@backward(torch.Tensor.to_mkldnn)
def to_mkldnn(grad):
    return grad.to_dense()


def _convert_like(grad, pattern):
    """A dense gradient in the layout of ``pattern``, with entries wherever it is not zero."""
    if pattern.layout is torch.sparse_coo:
        return grad.to_sparse(pattern.sparse_dim())
    return grad.to_sparse(layout=pattern.layout, blocksize=blocksize(pattern), dense_dim=pattern.dense_dim())


def _sparsified(grad, source):
    """The gradient of a conversion to a sparse layout; ``source`` is the input if that was sparse, otherwise None."""
    if source is None:
        return grad.to_dense() if is_sparse(grad) else grad
    return masked(grad, source) if is_sparse(grad) else _convert_like(grad, source)


def _conversion(convert, layout):
    """The rule of one conversion. A dense input is not saved: only a sparse one has a pattern for its gradient."""

    def forward(input, *options):
        return convert(input, *options), {"source": input if is_sparse(input) else None}

    def rule(grad, source):
        return _sparsified(grad, source)

    rule.__name__ = layout
    backward(convert, wrt="input", forward=forward)(rule)


for _name in ("to_sparse_csr", "to_sparse_csc", "to_sparse_bsr", "to_sparse_bsc"):
    _conversion(getattr(torch.Tensor, _name), _name)
_conversion(aten.to_sparse.sparse_dim, "to_sparse_sparse_dim")


def _to_sparse(input, layout, blocksize, dense_dim):
    source = input if is_sparse(input) else None
    return input.to_sparse(layout=layout, blocksize=blocksize, dense_dim=dense_dim), {"source": source}


@backward(aten.to_sparse.default, wrt="input", forward=_to_sparse)
def to_sparse(grad, source):
    return _sparsified(grad, source)


@overloaded(torch.Tensor.to_sparse)
def choose_to_sparse(input, *sparse_dim, **options):
    return aten.to_sparse.sparse_dim if sparse_dim or "sparse_dim" in options else aten.to_sparse.default


def _sparse_mask(input, mask):
    return input.sparse_mask(mask), {"dense": not is_sparse(input)}


@backward(torch.Tensor.sparse_mask, wrt="input", forward=_sparse_mask)
def sparse_mask(grad, mask, dense):
    grad = masked(grad, mask)
    return grad.to_dense() if dense else grad


zero_gradient(torch.Tensor.sparse_mask, wrt="mask")  # its values are not read


# reductions along the entries


@decomposition(torch._sparse_sum)
def _sparse_sum(input, dim, dtype):
    input = input.coalesce()
    if dim is None:
        return input.values().sum(dtype=dtype)
    if not isinstance(dim, int) and len(dim) == 0:
        return input
    dims, sparse_dim = reduced_dims(dim, input.dim()), input.sparse_dim()
    dense = [d - sparse_dim + 1 for d in dims if d >= sparse_dim]
    values = input.values()
    values = values.sum(dense, dtype=dtype) if dense else values.to(dtype or values.dtype)
    remaining = [d for d in range(sparse_dim) if d not in dims]
    if not remaining:
        return values.sum(0)
    shape = [size for d, size in enumerate(input.shape) if d not in dims]
    merged = len(remaining) < sparse_dim
    summed = aten._sparse_coo_tensor_unsafe(
        input.indices()[remaining], values, shape, dtype=values.dtype, is_coalesced=not merged
    )
    return summed.coalesce() if merged else summed


def _total(values, pattern, dim):
    """The sum of ``values`` over the entries of ``pattern`` that differ along ``dim`` alone, for each of them."""
    sparse_dim = pattern.sparse_dim()
    dim = dim % pattern.dim()
    if dim >= sparse_dim:
        return values.sum(dim - sparse_dim + 1, keepdim=True)
    # Entries are in one group if their indices are equal except for that along dim.
    indices = [index if d != dim else torch.zeros_like(index) for d, index in enumerate(pattern._indices())]
    groups, group = linear(indices, pattern.shape[:sparse_dim]).unique(return_inverse=True)
    return values.new_zeros(len(groups), *values.shape[1:]).index_add(0, group, values)[group]


# softmax over the entries, those that are not stored counting as minus infinity: dy = y (dx - Σ y dx), dlog y = dx - Σ y dx


@backward(torch._C._sparse._sparse_softmax)
def _sparse_softmax(grad, result, dim):
    y, grad = result.values(), entries(grad, result)
    return like(result, y * (grad - _total(y * grad, result, dim)))


@backward(torch._C._sparse._sparse_log_softmax)
def _sparse_log_softmax(grad, result, dim):
    y, grad = result.values().exp(), entries(grad, result)
    return like(result, grad - y * _total(grad, result, dim))


# the sparse gradients of embedding and gather: rows, or elements, at their indices


@decomposition(aten.embedding_sparse_backward)
def embedding_sparse_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq):
    rows, indices = grad.reshape(indices.numel(), grad.shape[-1]), indices.flatten()
    if padding_idx >= 0:
        taken = indices != padding_idx
        rows, indices = rows[taken], indices[taken]
    shape = (num_weights, grad.shape[-1])
    return aten._sparse_coo_tensor_unsafe(indices.unsqueeze(0), rows, shape, dtype=grad.dtype)


@decomposition(aten._gather_sparse_backward)
def _gather_sparse_backward(input, dim, index, grad):
    if grad.dim() == 0:
        indices, grad = index.new_zeros((0, 1)), grad.unsqueeze(0)
    else:
        axes = [torch.arange(size, device=index.device) for size in index.shape]
        places = list(torch.meshgrid(axes, indexing="ij"))
        places[dim] = index
        indices = torch.stack([place.flatten() for place in places])
    return aten._sparse_coo_tensor_unsafe(indices, grad.flatten(), input.shape, dtype=grad.dtype)
