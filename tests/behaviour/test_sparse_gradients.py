"""Gradients in sparse layouts on their way: added up, filled in, saved, shown; and writes into sparse tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracer

T = torch.Tensor
X = torch.ones(3, 2)


def made(layout: str) -> T:
    values = torch.tensor([1.0, 2, 3])
    if layout == "coo":
        return torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], values, (2, 3)).coalesce()
    csr = torch.sparse_csr_tensor([0, 1, 3], [2, 0, 2], values, (2, 3))
    return csr if layout == "csr" else csr.to_sparse_csc()


def sparse_leaf(layout: str) -> T:
    return tracer.track(made(layout), True)


#: A loss whose gradient for a sparse matrix is dense, and one whose gradient is sparse.
def dense_loss(s: T) -> T:
    return torch.mm(s, X).sum()


def sparse_loss(s: T) -> T:
    return torch.sparse.mm(s, X).sum()


DENSE = torch.full((2, 3), 2.0)
SPARSE = torch.tensor([[0.0, 0, 2], [2, 0, 2]])

layouts = pytest.mark.parametrize("layout", ["coo", "csr"])


@layouts
def test_dense_gradient_of_a_sparse_leaf_is_filled_in_as_it_is(layout: str) -> None:
    s = sparse_leaf(layout)
    dense_loss(s).backward()
    assert s.grad is not None
    assert torch.equal(s.grad, DENSE)
    assert type(s.grad) is T
    assert not s.grad.requires_grad


@layouts
@pytest.mark.parametrize("order", ["dense first", "sparse first"])
def test_dense_and_sparse_gradients_of_one_leaf_accumulate_to_a_dense_one(layout: str, order: str) -> None:
    s = sparse_leaf(layout)
    losses = (dense_loss, sparse_loss) if order == "dense first" else (sparse_loss, dense_loss)
    for loss in losses:
        loss(s).backward()
    assert s.grad is not None
    assert torch.equal(s.grad, DENSE + SPARSE)


@layouts
@pytest.mark.parametrize("order", ["dense first", "sparse first"])
def test_dense_and_sparse_gradients_meet_in_one_pass(layout: str, order: str) -> None:
    s = sparse_leaf(layout)
    losses = (dense_loss, sparse_loss) if order == "dense first" else (sparse_loss, dense_loss)
    (found,) = torch.autograd.grad(losses[0](s) + losses[1](s) + losses[0](s), s)
    assert torch.equal(found, DENSE * (1 + (order == "dense first")) + SPARSE * (1 + (order == "sparse first")))


@layouts
def test_sparse_gradients_accumulate_in_the_tensor_that_is_there(layout: str) -> None:
    s = sparse_leaf(layout)
    sparse_loss(s).backward()
    before: Any = s.grad
    sparse_loss(s).backward()
    assert s.grad is before
    assert torch.equal(before.to_dense(), 2 * SPARSE)


@pytest.mark.parametrize("dense_first", [True, False])
def test_table_that_is_looked_up_and_used_whole_gets_both_gradients(dense_first: bool) -> None:
    w = tracer.track(torch.ones(4, 2), True)
    rows, whole = F.embedding(torch.tensor([1, 0, 1]), w, sparse=True).sum(), (3 * w).sum()
    (whole + rows if dense_first else rows + whole).backward()
    assert w.grad is not None
    assert w.grad[:, 0].tolist() == [4, 5, 3, 3]


def test_native_sparse_leaf_gets_a_dense_gradient_too() -> None:
    s = made("csr").requires_grad_()
    (s @ tracer.track(X, True)).sum().backward()
    assert s.grad is not None
    assert torch.equal(s.grad, DENSE)
    assert s.requires_grad


def test_dense_gradient_of_a_native_sparse_leaf_with_hooks_raises() -> None:
    s = made("coo").requires_grad_()
    s.register_hook(lambda g: g)
    with pytest.raises(tracer.UnsupportedError, match="hooks"):
        (s @ tracer.track(X, True)).sum().backward()


def test_gradients_that_torch_cannot_add_raise() -> None:
    values = tracer.track(torch.ones(2, 3), True)
    batch = torch.sparse_csr_tensor([[0, 1, 3], [0, 2, 3]], [[2, 0, 2], [0, 1, 1]], values, (2, 2, 3))
    s = sparse_leaf("csc")
    for tensor in (batch, s):
        with pytest.raises(tracer.UnsupportedError, match="no sum"):
            (tensor.to_dense().sum() + tensor.values().sum()).backward()


@layouts
def test_filled_gradient_shares_no_memory_with_the_one_given(layout: str) -> None:
    s, given = sparse_leaf(layout), torch.ones(3)
    s.values().backward(given)
    given.mul_(5)
    assert s.grad is not None
    assert s.grad.values().tolist() == [1, 1, 1]


def test_gradient_of_a_csr_factor_multiplied_by_a_number_reaches_the_number() -> None:
    w = tracer.tensor(2.0, requires_grad=True)
    (made("csr") * w).values().sum().backward()
    assert w.grad is not None
    assert w.grad.item() == 6


# writes


@layouts
def test_recorded_write_into_a_sparse_tensor_raises_and_writes_nothing(layout: str) -> None:
    s = sparse_leaf(layout) * 1
    with pytest.raises(tracer.UnsupportedError, match="mul_ writes into a tensor of layout"):
        s.mul_(2)
    assert s.detach().values().tolist() == [1, 2, 3]


@layouts
def test_recorded_write_into_the_values_of_a_sparse_tensor_raises(layout: str) -> None:
    s = sparse_leaf(layout) * 1
    with pytest.raises(tracer.UnsupportedError, match="mul_ writes into a tensor of layout"):
        s.values().mul_(2)


@layouts
def test_sparse_leaf_can_be_written_under_no_grad(layout: str) -> None:
    s = sparse_leaf(layout)
    with torch.no_grad():
        s.mul_(2)
    assert s.detach().to_dense().tolist() == [[0, 0, 2], [4, 0, 6]]
    assert s.requires_grad


@layouts
def test_sparse_leaf_takes_a_step_of_an_optimiser(layout: str) -> None:
    s = sparse_leaf(layout)
    sparse_loss(s).backward()
    torch.optim.SGD([s], 0.5).step()
    assert s.detach().to_dense().tolist() == [[0, 0, 0], [1, 0, 2]]


@layouts
def test_saved_sparse_tensor_that_was_overwritten_raises(layout: str) -> None:
    x = tracer.track(X, True)
    s = sparse_leaf(layout) * 1
    y = torch.sparse.mm(s, x)
    with torch.no_grad():
        s.mul_(2)
    with pytest.raises(tracer.OverwrittenError, match="sparse"):
        y.sum().backward()


# the graph


@layouts
def test_graph_counts_the_bytes_of_indices_and_values(layout: str) -> None:
    with tracer.Graph() as graph:
        y = torch.sparse.mm(sparse_leaf(layout), X.requires_grad_(False))
    indices = 6  # two for each entry; or one for each, and one for each row and the end
    assert graph.kept_bytes() == 8 * indices + 4 * 3 + 4 * X.numel()
    assert graph.digraph.num_nodes() == 2
    del y


def test_batched_product_with_a_sparse_factor_has_a_gradient() -> None:
    x = tracer.track(torch.ones(2, 3, 4), True)
    torch.bmm(torch.stack([made("coo")] * 2), x).sum().backward()
    assert x.grad is not None
    assert x.grad[0, :, 0].tolist() == [2, 0, 4]
