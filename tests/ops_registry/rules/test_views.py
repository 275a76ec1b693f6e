"""Rules of ``ops_registry/rules/views.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, rand, run_case
from support.results import square

import tracer
from ops_registry.strided import write_region

C = torch.complex128
aten = torch.ops.aten


CASES = [
    case("linalg_diagonal", lambda x: torch.linalg.diagonal(x, offset=1), rand(2, 3, 4)),
    # torch's own backward of as_strided_scatter is wrong towards the tensor written into: differences decide.
    case(
        "write_region",
        lambda x, v: write_region(x, v, (2, 2), (4, 1), 1),
        rand(3, 4),
        rand(2, 2),
        torch_agrees=False,
        second="differences",
    ),
    case(
        "write_region",
        lambda x, v: write_region(x.t() * 1, v * v, (2,), (3,), 2),
        rand(3, 4),
        rand(2),
        torch_agrees=False,
        second="differences",
        label="transposed",
    ),
    # diagonals
    case("diagonal", lambda x: square(x.diagonal()), rand(3, 4)),
    case(
        "diagonal",
        lambda x: square(torch.diagonal(x, offset=-1, dim1=2, dim2=0)),
        rand(3, 2, 4, dtype=C),
        label="complex-dims",
    ),
    case("diagonal", lambda x: square(x.diagonal(0, -1, 1)), rand(2, 3, 2, 1, 3), label="rank-5"),
    case("diagonal", lambda x: x.diagonal(4), rand(3, 4), label="outside"),
    case("diagonal", lambda x: square(x.t().diagonal(1)), rand(3, 4), label="transposed"),
    case("diagonal_copy", lambda x: square(torch.diagonal_copy(x, 1)), rand(3, 4)),
    case("diagonal_backward", lambda g: square(aten.diagonal_backward(g, [3, 4], 1, 0, 1)), rand(3)),
    case("diag_embed", lambda x: square(x.diag_embed()), rand(2, 3)),
    case(
        "diag_embed",
        lambda x: square(torch.diag_embed(x, offset=-1, dim1=0, dim2=2)),
        rand(2, 3, dtype=C),
        label="complex-dims",
    ),
    case("diag_embed", lambda x: x.diag_embed(), rand(0), label="empty"),
    case("diagflat", lambda x: square(x.diagflat(1)), rand(2, 2)),
    case("diagflat", lambda x: square(torch.diagflat(x)), rand(), label="scalar"),
    case("diag", lambda x: square(x.diag(1)), rand(3), label="vector"),
    case("diag", lambda x: square(torch.diag(x, diagonal=-1)), rand(3, 4, dtype=C), label="matrix"),
    # triangles
    case("tril", lambda x: square(x.tril()), rand(3, 4)),
    case("tril", lambda x: square(torch.tril(x, diagonal=-1)), rand(2, 3, 3, dtype=C), label="complex-batch"),
    case("tril", lambda x: (x * x).tril_(1), rand(3, 3), label="in-place"),
    case("tril", lambda x: square(x.expand(3, 3).tril()), rand(3), label="expanded"),
    case("triu", lambda x: square(x.triu(1)), rand(3, 4)),
    case("triu", lambda x: (x * x).triu_(), rand(3, 3), label="in-place"),
    case("triu", lambda x: x.triu(), rand(2, 0, 3), label="empty"),
    # sliding windows
    case("unfold", lambda x: square(x.unfold(0, 2, 2)), rand(6), label="apart"),
    case("unfold", lambda x: square(x.unfold(1, 3, 1)), rand(2, 5, 2, dtype=C), label="overlapping"),
    case("unfold", lambda x: square(x.unfold(-1, 2, 3)), rand(2, 6), label="with-gaps"),
    case("unfold", lambda x: square(x.unfold(dimension=0, size=1, step=1)), rand(), label="scalar-keyword"),
    case("unfold", lambda x: square(x.t().unfold(0, 2, 1)), rand(2, 4), label="transposed"),
    case("unfold", lambda x: square(x.unfold(0, 2, 1).unfold(1, 2, 1)), rand(3, 3), label="two-dimensions"),
    case("unfold_copy", lambda x: square(torch.unfold_copy(x, 0, 2, 1)), rand(4)),
    case("unfold_backward", lambda g: square(aten.unfold_backward(g, [4], 0, 2, 1)), rand(3, 2)),
    # strides
    case("as_strided", lambda x: square(x.as_strided((2, 3), (1, 2))), rand(6)),
    case("as_strided", lambda x: square(x.as_strided((3, 2), (1, 1))), rand(6), label="overlapping"),
    case(
        "as_strided",
        lambda x: square(torch.as_strided(x, size=(2, 2), stride=(0, 3), storage_offset=1)),
        rand(6, dtype=C),
        label="repeated",
    ),
    case("as_strided", lambda x: square(x.expand(3, 2).as_strided((3, 2), (0, 1))), rand(2), label="of-expanded"),
    case("as_strided", lambda x: square(x.expand(3, 2).as_strided((2,), (1,))), rand(2), label="one-row-of-expanded"),
    case("as_strided", lambda x: square(x.t().as_strided((2, 2), (2, 1))), rand(2, 3), label="of-transposed"),
    case("as_strided", lambda x: square(x[:, 1:].as_strided((2, 2), (3, 1), 1)), rand(2, 3), label="of-a-part"),
    # As in torch, a gradient reaches the cells of the input alone, not what lies beside it.
    case(
        "as_strided",
        lambda x: square((x * 1)[1:].as_strided((3,), (1,), 0)),
        rand(4),
        label="beyond-the-part",
        differences=False,
    ),
    case("as_strided", lambda x: square(x.unfold(0, 3, 1).as_strided((4, 2), (1, 1))), rand(6), label="of-windows"),
    case("as_strided", lambda x: square(x.as_strided((), (), 2)), rand(4), label="to-scalar"),
    case("as_strided", lambda x: square(x.as_strided((2,), (0,))), rand(), label="of-scalar"),
    case("as_strided", lambda x: x.as_strided((0, 2), (2, 1)), rand(4), label="to-nothing"),
    case("as_strided_copy", lambda x: square(torch.as_strided_copy(x, (3, 2), (1, 1))), rand(6)),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_overlapping_windows_count_each_element_once_a_window() -> None:
    # pytorch/pytorch#8721
    x = tracer.tensor([1.0, 2.0, 3.0, 4.0, 5.0], requires_grad=True)
    x.unfold(0, 3, 1).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0, 2.0, 1.0]


def test_as_strided_of_expanded_memory_gives_the_sums_over_the_copies() -> None:
    # pytorch/pytorch#8626
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    (x.expand(3, 2).as_strided((3, 2), (0, 1)) * torch.arange(6.0).reshape(3, 2)).sum().backward()
    assert x.grad.tolist() == [6.0, 9.0]


def test_as_strided_keeps_no_tensor() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert not x.as_strided((2,), (1,)).grad_fn.saved_versions


def test_in_place_as_strided_changes_the_geometry_and_writes_nothing() -> None:
    x = tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x * 1
    y.as_strided_((2, 2), (1, 2))
    assert y.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    torch.autograd.backward(y, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert x.grad.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_as_strided_copy_shares_no_memory() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert torch.as_strided_copy(x, (2,), (1,)).data_ptr() != x.data_ptr()


def test_diagonal_outside_the_matrix_gives_zeros() -> None:
    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    x.diagonal(5).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0]]
