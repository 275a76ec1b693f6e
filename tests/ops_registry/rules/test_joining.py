"""Rules of ``ops_registry/rules/joining.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from support.checking import Case, case, rand, run_case, values
from support.results import square

import tracer

C = torch.complex128
VF = torch._C._VariableFunctions


def squares(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [p * p for p in parts]


CASES = [
    # joining
    case("cat", lambda a, b: square(torch.cat([a, b])), rand(2, 3), rand(1, 3)),
    case("cat", lambda a, b: square(torch.cat((a, b), dim=-1)), rand(2, 3, dtype=C), rand(2, 1), label="complex-real"),
    case("cat", lambda a, b: square(torch.cat([a, b, a])), rand(2), rand(1), label="one-tensor-twice"),
    case("cat", lambda a, b: square(torch.cat([a, b], 1)), rand(0), rand(2, 3), label="legacy-empty"),
    case("cat", lambda a, b: square(torch.cat([a, b])), rand(0, 3), rand(2, 3), label="empty"),
    case("cat", lambda a: square(torch.cat([a])), rand(2, 3), label="one"),
    case(
        "cat",
        lambda a, b: square(torch.concat(tensors=[a.t(), b], axis=1)),
        rand(2, 3),
        rand(3, 1),
        label="alias-keyword",
    ),
    case(
        "cat",
        lambda a, b: square(torch.concatenate([a, b], 4)),
        rand(1, 2, 1, 2, 1),
        rand(1, 2, 1, 2, 2),
        label="rank-5",
    ),
    case("cat", lambda a, b: square(torch.ops.aten.cat([a, b], -2)), rand(2, 3), rand(1, 3), label="aten"),
    case("stack", lambda a, b: square(torch.stack([a, b], -1)), rand(2, 3), rand(2, 3, seed=1)),
    case("stack", lambda a, b: square(torch.stack((a, b, a))), rand(dtype=C), rand(), label="complex-scalars"),
    case("stack", lambda a, b: torch.stack([a, b]), rand(0), rand(0), label="empty"),
    case("hstack", lambda a, b: square(torch.hstack([a, b])), rand(2, 3), rand(2, 1)),
    case("hstack", lambda a, b: square(torch.hstack([a, b])), rand(2), rand(), label="vector-and-scalar"),
    case("hstack", lambda a, b: square(torch.hstack([a, b])), rand(2, 3), rand(0), label="legacy-empty"),
    case("vstack", lambda a, b: square(torch.vstack([a, b])), rand(2, 3), rand(3)),
    case(
        "vstack", lambda a, b: square(torch.row_stack([a, b])), rand(), rand(1, dtype=C), label="alias-scalar-complex"
    ),
    case("dstack", lambda a, b: square(torch.dstack([a, b])), rand(2, 3), rand(2, 3, 2)),
    case("dstack", lambda a, b: square(torch.dstack([a, b])), rand(3), rand(1, 3), label="vector"),
    case("column_stack", lambda a, b: square(torch.column_stack([a, b])), rand(2), rand(2, 3)),
    case("column_stack", lambda a, b: square(torch.column_stack([a, b])), rand(), rand(), label="scalars"),
    case("block_diag", lambda a, b: square(VF.block_diag([a, b])), rand(2, 3), rand(2)),
    case(
        "block_diag",
        lambda a, b: square(torch.block_diag(a, b, a)),
        rand(),
        rand(1, 2, dtype=C),
        label="variadic-complex",
    ),
    # taking apart
    case("split", lambda x: squares(x.split(2)), rand(5, 2)),
    case("split", lambda x: squares(torch.split(x, [1, 0, 3], dim=-1)), rand(2, 4, dtype=C), label="complex-sizes"),
    case("split", lambda x: square(torch.split(x, 2)[1]), rand(5), label="one-part"),
    case("split", lambda x: squares(x.split(3, dim=0)[::2]), rand(8), label="some-parts"),
    case("split", lambda x: squares(torch.split_copy(x, 2)), rand(4), label="copy"),
    case("split_with_sizes", lambda x: squares(x.split_with_sizes([2, 3])), rand(5)),
    case(
        "split_with_sizes",
        lambda x: squares(torch.split_with_sizes(x.t(), split_sizes=(1, 1), dim=1)),
        rand(2, 3),
        label="keyword",
    ),
    case("split_with_sizes", lambda x: squares(torch.split_with_sizes_copy(x, [2, 3])), rand(5), label="copy"),
    case("unsafe_split", lambda x: squares(x.unsafe_split(2)), rand(5)),
    case("unsafe_split_with_sizes", lambda x: squares(x.unsafe_split_with_sizes([2, 3])), rand(5)),
    case("chunk", lambda x: squares(x.chunk(3)), rand(7)),
    case("chunk", lambda x: square(torch.chunk(x, chunks=2, dim=1)[0]), rand(2, 4), label="one-part"),
    case("chunk", lambda x: squares(x.chunk(2)), rand(1, 2), label="fewer-than-asked"),
    case("unsafe_chunk", lambda x: squares(x.unsafe_chunk(3)), rand(7)),
    case("tensor_split.sections", lambda x: squares(x.tensor_split(3)), rand(7)),
    case(
        "tensor_split.sections",
        lambda x: squares(torch.tensor_split(x, sections=5, dim=1)),
        rand(2, 3),
        label="more-than-length",
    ),
    case("tensor_split.indices", lambda x: squares(x.tensor_split((1, 3), 1)), rand(2, 4, dtype=C), label="complex"),
    case(
        "tensor_split.indices",
        lambda x: squares(torch.tensor_split(x, indices=[-1])),
        rand(4),
        label="negative-keyword",
    ),
    case("tensor_split.indices", lambda x: squares(x.tensor_split((3, 1))), rand(4), label="overlapping"),
    case("tensor_split.tensor_indices_or_sections", lambda x: squares(x.tensor_split(torch.tensor([1, 2]))), rand(4)),
    case(
        "tensor_split.tensor_indices_or_sections",
        lambda x: squares(x.tensor_split(torch.tensor(2))),
        rand(4),
        label="sections",
    ),
    case("hsplit.int", lambda x: squares(x.hsplit(2)), rand(2, 4)),
    case("hsplit.int", lambda x: square(torch.hsplit(x, sections=2)[1]), rand(4), label="vector"),
    case("hsplit.array", lambda x: squares(x.hsplit((1, 3))), rand(2, 4)),
    case("hsplit.array", lambda x: squares(torch.hsplit(x, indices=[3, 1])), rand(4), label="vector-overlapping"),
    case("vsplit.int", lambda x: squares(x.vsplit(2)), rand(4, 2)),
    case("vsplit.array", lambda x: squares(torch.vsplit(x, (1,))), rand(4, 2)),
    case("dsplit.int", lambda x: squares(x.dsplit(2)), rand(1, 2, 4)),
    case("dsplit.array", lambda x: squares(torch.dsplit(x, (1, 2))), rand(1, 2, 4)),
    case("unbind", lambda x: squares(x.unbind()), rand(3, 2)),
    case("unbind", lambda x: squares(torch.unbind(x, dim=-1)[:2]), rand(2, 3, dtype=C), label="complex-some-parts"),
    case("unbind", lambda x: squares(list(x)), rand(3), label="iteration"),
    case("unbind", lambda x: squares(torch.unbind_copy(x, 1)), rand(3, 2), label="copy"),
    # products of lists and powers
    case("cartesian_prod", lambda a, b: square(torch.cartesian_prod(a, b)), rand(2), rand(3)),
    case("cartesian_prod", lambda a: square(torch.cartesian_prod(a)), rand(3), label="one"),
    case("combinations", lambda x: square(torch.combinations(x)), rand(4)),
    case(
        "combinations",
        lambda x: square(torch.combinations(x, r=3, with_replacement=True)),
        rand(3, dtype=C),
        label="replaced",
    ),
    case("combinations", lambda x: torch.combinations(x, 3), rand(2), label="empty"),
    # torch's own backward of vander raises: it writes into what it has kept.
    case("vander", lambda x: square(torch.vander(x)), rand(3), torch_agrees=False),
    case(
        "vander",
        lambda x: square(torch.vander(x, N=4, increasing=True)),
        rand(2, dtype=C),
        torch_agrees=False,
        label="complex-increasing",
    ),
    case("vander", lambda x: torch.vander(x, 1), rand(2), torch_agrees=False, label="one-column"),
    case("linalg_vander", lambda x: square(torch.linalg.vander(x, N=3)), rand(2, 2)),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


#: Ops defined by others.
DEFINED = {
    "atleast_1d": (lambda a: square(torch.atleast_1d(a)), (rand(),)),
    "atleast_2d": (lambda a: square(torch.atleast_2d(a)), (rand(2),)),
    "atleast_3d": (lambda a: square(torch.atleast_3d(a)), (rand(2),)),
    "atleast_3d-scalar": (lambda a: square(torch.atleast_3d(a)), (rand(),)),
    "atleast_3d-matrix": (lambda a: square(torch.atleast_3d(a)), (rand(2, 3),)),
    "atleast_2d-several": (lambda a, b: squares(torch.atleast_2d(a, b)), (rand(), rand(2))),
    "broadcast_tensors": (lambda a, b: squares(torch.broadcast_tensors(a, b)), (rand(2, 1), rand(3, dtype=C))),
    "meshgrid-ij": (lambda a, b: squares(torch.meshgrid(a, b, indexing="ij")), (rand(2), rand(3))),
    "meshgrid-xy": (lambda a, b, c: squares(torch.meshgrid(a, b, c, indexing="xy")), (rand(2), rand(3), rand())),
    "meshgrid-list": (
        lambda a, b: squares(torch.meshgrid([a, b], indexing="xy")),
        (rand(2, dtype=C), rand(3, dtype=C)),
    ),
    "meshgrid-one": (lambda a: squares(torch.meshgrid(a, indexing="xy")), (rand(2),)),
}


@pytest.mark.parametrize("name", DEFINED)
def test_defined_by_other_ops(name: str, device: torch.device) -> None:
    function, inputs = DEFINED[name]
    run_case(case(name, function, *inputs), device)


def test_cat_gives_each_tensor_its_own_part() -> None:
    # pytorch/pytorch#34294
    a = tracer.tensor([1.0, 2.0], requires_grad=True)
    b = tracer.tensor([3.0], requires_grad=True)
    (torch.cat([a, b, a]) * torch.arange(5.0)).sum().backward()
    assert a.grad.tolist() == [0.0 + 3.0, 1.0 + 4.0]
    assert b.grad.tolist() == [2.0]


def test_cat_of_two_dtypes_gives_each_its_own() -> None:
    a = tracer.tensor([1.0], dtype=torch.float64, requires_grad=True)
    b = tracer.tensor([2.0], dtype=torch.float32, requires_grad=True)
    torch.cat([a, b]).sum().backward()
    assert a.grad.dtype == torch.float64
    assert b.grad.dtype == torch.float32


def test_cat_keeps_no_tensor() -> None:
    a = tracer.tensor([1.0], requires_grad=True)
    assert not torch.cat([a, a]).grad_fn.saved_versions


def test_part_that_is_not_used_receives_zeros() -> None:
    x = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x.split(1)[1].sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("function", [torch.atleast_1d, torch.broadcast_tensors])
def test_plain_tensor_that_already_fits_stays_plain(function: Callable[..., Sequence[torch.Tensor]]) -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    constant = torch.ones(2)
    assert function(x, constant)[1] is constant
    assert type(constant) is torch.Tensor


def test_meshgrid_tracks_each_grid_by_its_own_tensor() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    grids = torch.meshgrid(x, torch.ones(3), indexing="ij")
    assert [g.requires_grad for g in grids] == [True, False]


def test_meshgrid_of_a_matrix_is_refused() -> None:
    with pytest.raises(RuntimeError, match="rank 0 or 1"):
        torch.meshgrid(tracer.tensor([[1.0]], requires_grad=True), indexing="ij")


def test_vander_at_zero_counts_the_first_power_alone() -> None:
    x = tracer.tensor([0.0], requires_grad=True)
    torch.autograd.backward(torch.vander(x, N=3, increasing=True), torch.tensor([[5.0, 7.0, 11.0]]))
    assert x.grad.tolist() == [7.0]


def test_combinations_counts_how_often_an_element_is_chosen() -> None:
    x = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    torch.combinations(x, 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_overlapping_parts_add_up() -> None:
    x = tracer.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    sum(p.sum() for p in x.tensor_split((3, 1))).backward()
    assert x.grad.tolist() == [1.0, 2.0, 2.0, 1.0]


def test_empty_list_of_values_joins() -> None:
    x = tracer.tensor([], requires_grad=True)
    torch.cat([x, values([1.0])(torch.device("cpu"))]).sum().backward()
    assert x.grad.shape == (0,)


def test_vander_of_nothing_has_an_empty_gradient(device: torch.device) -> None:
    x = tracer.track(rand(0)(device), True)
    (g,) = torch.autograd.grad(torch.vander(x).sum(), x)
    assert g.shape == (0,)
