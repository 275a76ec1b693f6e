"""Rules of ``ops_registry/rules/sparse.py``.

torch loses the second derivative by values at ``sparse_coo_tensor`` without a word, and has none of most other sparse ops: central
differences are the truth there.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.analytic import assert_values
from support.checking import Case, case, plain, rand, run_case
from support.leaves import tracked
from support.sparse import PLACES, TWICE, batch, coo, csr, long

import tracer

COMPLEX = torch.complex128
T = torch.Tensor


def csc(v: T, shape: tuple[int, ...] = (2, 3)) -> T:
    return torch.sparse_csc_tensor(long((0, 1, 1, 3), v), long((1, 0, 1), v), v, shape)


def bsr(v: T) -> T:
    return torch.sparse_bsr_tensor(long((0, 1, 3), v), long((2, 0, 2), v), v, (4, 9))


def bsc(v: T) -> T:
    return torch.sparse_bsc_tensor(long((0, 1, 1, 3), v), long((1, 0, 1), v), v, (4, 9))


def squares(made: T) -> T:
    return made.to_dense() ** 2


def pattern(x: T, layout: str = "coo") -> T:
    """The places of PLACES, holding ones that nothing should read."""
    mask = coo(torch.ones(3, dtype=x.dtype, device=x.device), PLACES).coalesce()
    return mask if layout == "coo" else mask.to_sparse(layout=getattr(torch, f"sparse_{layout}"))


#: Linear in the values, or torch has no second derivative.
SLOPE: dict[str, Any] = {"second": "differences"}
#: torch differentiates no compressed layout with complex values, nor batches of them.
ALONE: dict[str, Any] = {"second": "differences", "torch_agrees": False}
#: One matrix in single precision, which is all that torch knows.
MKLDNN: dict[str, Any] = {"differences": False, "rtol": 1e-6, "atol": 1e-6}

CONSTRUCTORS = [
    case("sparse_coo_tensor", lambda v: squares(coo(v)), rand(4), **SLOPE),
    case("sparse_coo_tensor", lambda v: squares(coo(v)), rand(4, dtype=COMPLEX), **SLOPE, label="complex"),
    case("sparse_coo_tensor", lambda v: squares(coo(v, PLACES)), rand(3), **SLOPE, label="sorted"),
    case("sparse_coo_tensor", lambda v: squares(coo(v, shape=(2, 3, 5))), rand(4, 5), **SLOPE, label="hybrid"),
    case("sparse_coo_tensor", lambda v: coo(v, ((0, 2, 0),), (3,)).to_dense() ** 2, rand(3), **SLOPE, label="vector"),
    case("sparse_coo_tensor", lambda v: squares(coo(v, ((), ()))), rand(0), second="differences", label="empty"),
    case(
        "sparse_coo_tensor",
        lambda v: squares(torch.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64, device=v.device), v, ())),
        rand(1),
        **SLOPE,
        label="0-d",
    ),
    case(
        "sparse_coo_tensor",
        lambda v: squares(torch.sparse_coo_tensor(long([[1], [0], [2], [1], [0]], v), v, (2, 1, 3, 2, 1))),
        rand(1),
        **SLOPE,
        label="rank-5",
    ),
    case(
        "sparse_coo_tensor",
        lambda v: squares(torch.sparse_coo_tensor(values=v, indices=list(map(list, TWICE)), size=(2, 3))),
        rand(4),
        **SLOPE,
        label="by-name",
    ),
    case("sparse_coo_tensor", lambda v: squares(coo(v.t()[1], PLACES)), rand(3, 4), **SLOPE, label="strided"),
    case("sparse_coo_tensor", lambda v: squares(coo(v.expand(4))), rand(1), **SLOPE, label="expanded"),
    case("sparse_csr_tensor", lambda v: squares(csr(v)), rand(3), **SLOPE),
    case("sparse_csr_tensor", lambda v: squares(csr(v)), rand(3, dtype=COMPLEX), **ALONE, label="complex"),
    case("sparse_csr_tensor", lambda v: squares(csr(v, (2, 3, 4))), rand(3, 4), **ALONE, label="hybrid"),
    case("sparse_csr_tensor", lambda v: squares(batch(v)), rand(2, 3), **ALONE, label="batch"),
    case("sparse_csc_tensor", lambda v: squares(csc(v)), rand(3), **SLOPE),
    case("sparse_bsr_tensor", lambda v: squares(bsr(v)), rand(3, 2, 3), **SLOPE),
    case("sparse_bsc_tensor", lambda v: squares(bsc(v)), rand(3, 2, 3), **SLOPE),
    case(
        "sparse_compressed_tensor",
        lambda v: squares(
            torch.sparse_compressed_tensor(long((0, 1, 3), v), long((2, 0, 2), v), v, (2, 3), layout=torch.sparse_csr)
        ),
        rand(3),
        **SLOPE,
    ),
]

PARTS = [
    case("values", lambda v: coo(v, PLACES).coalesce().values() ** 2, rand(3), **SLOPE),
    case("values", lambda v: csr(v).values() ** 2, rand(3), **SLOPE, label="csr"),
    case("values", lambda v: csc(v).values() ** 2, rand(3), **SLOPE, label="csc"),
    case("values", lambda v: bsr(v).values() ** 2, rand(3, 2, 3), **SLOPE, label="bsr"),
    case("values", lambda x: x.to_sparse_csr().values() ** 2, rand(2, 3), **SLOPE, label="from-dense"),
    case("coalesce", lambda v: coo(v).coalesce().values() ** 2, rand(4), **SLOPE),
    case("coalesce", lambda v: coo(v, shape=(2, 3, 2)).coalesce().values() ** 2, rand(4, 2), **SLOPE, label="hybrid"),
    case("coalesce", lambda v: coo(v).coalesce().values() ** 2, rand(4, dtype=COMPLEX), **SLOPE, label="complex"),
]

CONVERSIONS = [
    case("to_dense", lambda v: coo(v).to_dense() ** 2, rand(4), **SLOPE),
    case("to_dense", lambda v: csr(v).to_dense() ** 2, rand(3), **SLOPE, label="csr"),
    case("to_dense", lambda v: csc(v).to_dense() ** 2, rand(3), **SLOPE, label="csc"),
    case("to_dense", lambda v: bsr(v).to_dense() ** 2, rand(3, 2, 3), **SLOPE, label="bsr"),
    case("to_dense", lambda v: bsc(v).to_dense() ** 2, rand(3, 2, 3), **SLOPE, label="bsc"),
    case("to_dense", lambda v: coo(v).to_dense(masked_grad=False) ** 2, rand(4), **SLOPE, label="unmasked"),
    case("to_dense", lambda v: csr(v).to_dense(masked_grad=False) ** 2, rand(3), **SLOPE, label="unmasked-csr"),
    case(
        "to_dense", lambda x: x.to_mkldnn().to_dense() ** 2, rand(2, 3, dtype=torch.float32), label="mkldnn", **MKLDNN
    ),
    case("to_mkldnn", lambda x: x.to_mkldnn().to_dense() ** 2, rand(2, 3, dtype=torch.float32), **MKLDNN),
    case("to_sparse", lambda x: squares(x.to_sparse()), rand(2, 3)),
    case("to_sparse", lambda x: squares(x.to_sparse()), rand(2, 3, dtype=COMPLEX), **ALONE, label="complex"),
    case("to_sparse", lambda x: squares(x.to_sparse()), rand(), label="0-d"),
    case("to_sparse", lambda x: squares(x.to_sparse()), rand(0, 3), label="empty"),
    case("to_sparse", lambda x: squares(x.t().to_sparse()), rand(2, 3), label="transposed"),
    case("to_sparse", lambda x: squares(x.expand(2, 3).to_sparse()), rand(3), label="expanded"),
    case("to_sparse", lambda x: squares(x.to_sparse()), rand(2, 1, 3, 2, 1), label="rank-5"),
    case("to_sparse", lambda x: squares(x.to_sparse(layout=torch.sparse_csr)), rand(2, 3), label="layout"),
    case("to_sparse", lambda x: squares(x.to_sparse_coo()), rand(2, 3), label="to_sparse_coo"),
    case("to_sparse", lambda v: squares(csr(v).to_sparse()), rand(3), **SLOPE, label="from-csr"),
    case("to_sparse", lambda v: squares(bsr(v).to_sparse()), rand(3, 2, 3), **ALONE, label="from-bsr"),
    case("to_sparse.sparse_dim", lambda x: squares(x.to_sparse(1)), rand(2, 3)),
    case("to_sparse.sparse_dim", lambda x: squares(x.to_sparse(sparse_dim=2)), rand(2, 3, 4), label="by-name"),
    case("to_sparse_csr", lambda x: squares(x.to_sparse_csr()), rand(2, 3)),
    case("to_sparse_csr", lambda x: squares(x.to_sparse_csr(dense_dim=1)), rand(2, 3, 4), label="hybrid", **ALONE),
    case("to_sparse_csr", lambda x: squares(x.to_sparse_csr()), rand(2, 2, 3), **ALONE, label="batch"),
    case("to_sparse_csr", lambda v: squares(coo(v).to_sparse_csr()), rand(4), **SLOPE, label="from-coo"),
    case("to_sparse_csc", lambda x: squares(x.to_sparse_csc()), rand(2, 3)),
    case("to_sparse_csc", lambda v: squares(csr(v).to_sparse_csc()), rand(3), **SLOPE, label="from-csr"),
    case("to_sparse_bsr", lambda x: squares(x.to_sparse_bsr((2, 1))), rand(4, 3)),
    case("to_sparse_bsr", lambda v: squares(csr(v).to_sparse_bsr((2, 1))), rand(3), **ALONE, label="from-csr"),
    case("to_sparse_bsc", lambda x: squares(x.to_sparse_bsc(blocksize=(2, 1))), rand(4, 3)),
    case("sparse_mask", lambda x: squares(x.sparse_mask(pattern(x))), rand(2, 3), **SLOPE),
    case(
        "sparse_mask", lambda x: squares(x.sparse_mask(pattern(x))), rand(2, 3, dtype=COMPLEX), **SLOPE, label="complex"
    ),
    case("sparse_mask", lambda x: squares(x.sparse_mask(mask=pattern(x, "csr"))), rand(2, 3), **ALONE, label="csr"),
    case("sparse_mask", lambda v: squares(coo(v).sparse_mask(pattern(v))), rand(4), **SLOPE, label="of-sparse"),
]

#: A vector of rows: places (0, 2), (1, 0), (1, 2), (1, 0), each with four elements.
ROWS = (2, 3, 4)


def summed(v: T, dim: Any, **options: Any) -> T:
    made = torch.sparse.sum(coo(v, shape=ROWS), dim, **options)
    return made.to_dense() ** 2


def softmax(v: T, dim: int, shape: tuple[int, ...] = (2, 3)) -> T:
    return squares(torch.sparse.softmax(coo(v, shape=shape), dim))


def log_softmax(v: T, dim: int, shape: tuple[int, ...] = (2, 3)) -> T:
    return squares(torch.sparse.log_softmax(coo(v, shape=shape), dim))


ALONG = [
    case("_sparse_sum", lambda v: torch.sparse.sum(coo(v)) ** 2, rand(4), **SLOPE),
    *[
        case("_sparse_sum", lambda v, d=d: summed(v, d), rand(4, 4), **SLOPE, label=f"dim-{d}")
        for d in (0, 1, 2, -1, [0, 1], [0, 2], [1, 2], [0, 1, 2])
    ],
    case("_sparse_sum", lambda v: summed(v, 0), rand(4, 4, dtype=COMPLEX), **ALONE, label="complex"),
    case("_sparse_softmax", lambda v: softmax(v, 1), rand(4), **SLOPE),
    case("_sparse_softmax", lambda v: softmax(v, 0), rand(4), **SLOPE, label="columns"),
    # torch counts a negative dimension wrongly in the backward pass.
    case("_sparse_softmax", lambda v: softmax(v, -1), rand(4), **ALONE, label="from-the-end"),
    case("_sparse_softmax", lambda v: softmax(v, 1, ROWS), rand(4, 4), **SLOPE, label="hybrid"),
    case("_sparse_softmax", lambda v: softmax(v, 2, ROWS), rand(4, 4), **SLOPE, label="dense-dim"),
    case("_sparse_log_softmax", lambda v: log_softmax(v, 1), rand(4), **SLOPE),
    case("_sparse_log_softmax", lambda v: log_softmax(v, 0), rand(4), **SLOPE, label="columns"),
    case("_sparse_log_softmax", lambda v: log_softmax(v, 2, ROWS), rand(4, 4), **SLOPE, label="dense-dim"),
    case("_sparse_log_softmax", lambda v: log_softmax(v, -2), rand(4), **ALONE, label="from-the-end"),
]

BUILT = [
    case(
        "embedding",
        lambda w: F.embedding(long((1, 0, 1), w), w, padding_idx=0, sparse=True) ** 2,
        rand(4, 3),
        differences=False,
        second=True,
        label="sparse",
    ),
    case(
        "gather",
        lambda x: torch.gather(x, 1, long(((0, 0), (1, 2)), x), sparse_grad=True) ** 2,
        rand(2, 3),
        label="sparse",
    ),
]

CASES = [*CONSTRUCTORS, *PARTS, *CONVERSIONS, *ALONG, *BUILT]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


# constructors


def test_sparse_tensor_made_of_tracked_values_has_a_history() -> None:
    assert coo(tracked([1.0, 2, 3, 4])).requires_grad
    assert csr(tracked([1.0, 2, 3])).requires_grad


def test_sparse_tensor_made_under_no_grad_has_none() -> None:
    with torch.no_grad():
        assert not coo(tracked([1.0, 2, 3, 4])).requires_grad


def test_requires_grad_of_the_constructor_makes_a_leaf_out_of_values_without_history() -> None:
    made = coo(tracked([1.0, 2, 3, 4]).detach(), requires_grad=True)
    assert made.is_leaf
    torch.sparse.sum(made).backward()
    assert made.grad is not None
    assert made.grad.to_dense().tolist() == [[0, 0, 1], [1, 0, 1]]


def test_requires_grad_of_the_constructor_keeps_the_history_of_values() -> None:
    v = tracked([1.0, 2, 3, 4])
    torch.sparse.sum(coo(v, requires_grad=True)).backward()
    assert_values(v.grad, [1.0, 1, 1, 1])


def test_values_given_in_another_dtype_get_their_gradient_in_theirs() -> None:
    v = tracer.tensor([1.0, 2, 3, 4], dtype=torch.float32, requires_grad=True)
    coo(v, dtype=torch.float64).to_dense().square().sum().backward()
    assert v.grad is not None
    assert v.grad.dtype is torch.float32
    assert v.grad.tolist() == [2, 12, 6, 12]


def test_size_and_invariants_are_optional_in_the_constructor() -> None:
    v = tracked([1.0, 2, 3, 4])
    made = torch.sparse_coo_tensor(torch.tensor(TWICE), v, check_invariants=True)
    assert made.shape == (2, 3)
    assert made.requires_grad


def test_plain_values_make_a_plain_sparse_tensor() -> None:
    assert type(coo(torch.ones(4))) is torch.Tensor
    assert torch.sparse_coo_tensor((2, 3))._nnz() == 0


def test_constructor_can_be_scripted() -> None:
    def build(indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(indices, values, [2, 3])

    assert torch.jit.script(build)(torch.tensor(TWICE), torch.ones(4))._nnz() == 4


def test_native_values_stay_with_torch() -> None:
    v = torch.ones(4, requires_grad=True)
    torch.sparse.sum(coo(v)).backward()
    assert type(v.grad) is torch.Tensor and v.grad.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_values_overwritten_after_they_were_built_in_raise(device: torch.device) -> None:
    v = tracked([1.0, 2, 3, 4]) * 1
    made = coo(v)
    v.mul_(2)
    with pytest.raises(tracer.OverwrittenError, match="values"):
        torch.sparse.sum(made).backward()


# layouts of gradients


LAYOUTS: dict[str, Callable[[], T]] = {
    "coo": lambda: coo(torch.tensor([1.0, 2, 3]), PLACES).coalesce(),
    "csr": lambda: csr(torch.tensor([1.0, 2, 3])),
    "csc": lambda: csc(torch.tensor([1.0, 2, 3])),
    "bsr": lambda: bsr(torch.arange(18.0).view(3, 2, 3)),
    "bsc": lambda: bsc(torch.arange(18.0).view(3, 2, 3)),
}

#: What a sparse leaf is put into.
USES: dict[str, Callable[[T], T]] = {
    "to_dense": lambda s: s.to_dense().square().sum(),
    "values": lambda s: s.values().square().sum(),
    "sum": lambda s: s.sum(),
    "times": lambda s: (s * 3).values().sum(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_of_a_sparse_leaf_has_the_layout_and_the_entries_that_torch_gives(layout: str, use: str) -> None:
    found = []
    for make in (lambda t: tracer.track(t, True), lambda t: t.detach().requires_grad_()):
        s = make(LAYOUTS[layout]())
        found.append(torch.autograd.grad(USES[use](s), s)[0])
    ours, theirs = map(plain, found)
    assert ours.layout is theirs.layout
    if ours.layout is not torch.strided:
        assert ours._nnz() == theirs._nnz()
    torch.testing.assert_close(ours.to_dense(), theirs.to_dense())


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_gradients_of_a_sparse_leaf_that_is_used_twice_are_added_up(layout: str) -> None:
    s = tracer.track(LAYOUTS[layout](), True)
    (found,) = torch.autograd.grad(s.to_dense().square().sum() + s.values().sum(), s)
    assert found.layout is s.layout
    torch.testing.assert_close(plain(found).to_dense(), (2 * s.detach()).to_dense() + pattern(s.detach()).to_dense())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_derivative_by_a_sparse_leaf_is_sparse_like_it(layout: str) -> None:
    s = tracer.track(LAYOUTS[layout](), True)
    (first,) = torch.autograd.grad((s.values() ** 3).sum(), s, create_graph=True)
    (second,) = torch.autograd.grad(first.values().sum(), s)
    assert second.layout is s.layout
    torch.testing.assert_close(plain(second.values()), 6 * s.detach().values(), check_dtype=False)


def test_gradient_of_a_dense_tensor_is_dense_after_any_conversion() -> None:
    x = tracked([[1.0, 0, 2], [0, 3, 0]])
    for made in (
        x.to_sparse(),
        x.to_sparse_csr(),
        x.to_sparse_csc(),
        x.to_sparse_bsr((1, 1)),
        x.sparse_mask(pattern(x)),
    ):
        (found,) = torch.autograd.grad(made.to_dense().square().sum(), x)
        assert found.layout is torch.strided


def test_entry_that_the_gradient_lacks_gets_zero() -> None:
    v = tracked([1.0, 2, 3, 4])
    cotangent = coo(torch.tensor([5.0], dtype=torch.float64), ((1,), (0,)))
    (found,) = torch.autograd.grad(coo(v), v, cotangent)
    assert_values(found, [0.0, 5, 0, 5])


def test_gradient_with_a_place_stored_twice_is_added_up() -> None:
    v = tracked([1.0, 2, 3, 4])
    cotangent = coo(torch.tensor([5.0, 7], dtype=torch.float64), ((1, 1), (0, 0)))
    (found,) = torch.autograd.grad(coo(v), v, cotangent)
    assert_values(found, [0.0, 12, 0, 12])


@pytest.mark.parametrize("layout", ["coo", "csc", "dense"])
def test_gradient_of_another_layout_is_read_at_the_entries(layout: str) -> None:
    v = tracked([1.0, 2, 3])
    dense = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    given = {"coo": dense.to_sparse(), "csc": dense.to_sparse_csc(), "dense": dense}[layout]
    (found,) = torch.autograd.grad(csr(v), v, given)
    assert_values(found, [2.0, 3, 5])


def test_blocks_are_read_out_of_a_gradient_without_blocks() -> None:
    v = tracer.track(torch.ones(3, 2, 3, dtype=torch.float64), True)
    dense = torch.arange(36.0, dtype=torch.float64).view(4, 9)
    (found,) = torch.autograd.grad(bsr(v), v, dense.to_sparse())
    torch.testing.assert_close(plain(found), torch.stack([dense[:2, 6:], dense[2:, :3], dense[2:, 6:]]))


def test_mask_takes_no_gradient() -> None:
    mask = tracer.track(coo(torch.ones(3, dtype=torch.float64), PLACES).coalesce(), True)
    made = tracked([[1.0, 2, 3], [4, 5, 6]]).sparse_mask(mask)
    (found,) = torch.autograd.grad(made.values().sum(), mask)
    assert found.layout is torch.sparse_coo
    assert not found.to_dense().any()


# what torch cuts


def test_underscore_values_has_no_history_as_in_torch() -> None:
    made = coo(tracked([1.0, 2, 3, 4]))
    assert not made._values().requires_grad
    assert not made._indices().requires_grad


def test_conversion_keeps_no_dense_input() -> None:
    made = tracked([[1.0, 0], [0, 2]]).to_sparse()
    assert made.grad_fn is not None
    assert not [k for k in made.grad_fn.saved or () if isinstance(k, T)]


# sums and softmax


def test_sum_along_no_dimension_is_the_tensor_itself() -> None:
    v = tracked([1.0, 2, 3, 4])
    assert torch.equal(torch.sparse.sum(coo(v), []).to_dense().detach(), coo(v).to_dense().detach())


def test_sum_in_another_dtype() -> None:
    v = tracer.tensor([1.0, 2, 3, 4], dtype=torch.float32, requires_grad=True)
    for dim in (None, 0, [0, 1]):
        made = torch.sparse.sum(coo(v), dim, dtype=torch.float64)
        assert made.dtype is torch.float64
        (found,) = torch.autograd.grad((made if made.layout is torch.strided else made.to_dense()).sum(), v)
        assert found.dtype is torch.float32
        assert found.tolist() == [1, 1, 1, 1]


def test_sum_along_a_dimension_has_no_place_twice() -> None:
    made = torch.sparse.sum(coo(tracked([1.0, 2, 3, 4])), 0)
    assert made.is_coalesced()
    assert made._nnz() == 2


def test_softmax_of_the_only_entry_of_a_row_has_no_slope() -> None:
    v = tracked([2.0, 1, 3])
    (found,) = torch.autograd.grad(torch.sparse.softmax(coo(v, PLACES), 1).to_dense()[0].sum(), v)
    assert_values(found, [0.0, 0, 0])


def test_softmax_in_another_dtype() -> None:
    v = tracer.tensor([1.0, 2, 3, 4], dtype=torch.float32, requires_grad=True)
    made = torch.sparse.softmax(coo(v), 1, dtype=torch.float64)
    assert made.dtype is torch.float64
    torch.sparse.sum(made * made).backward()
    assert v.grad is not None
    assert v.grad.dtype is torch.float32


# embeddings


def test_sparse_gradient_of_an_embedding_can_be_differentiated_again() -> None:
    w = tracked([[1.0, 2], [3, 4], [5, 6]])
    (first,) = torch.autograd.grad(
        (F.embedding(torch.tensor([1, 0, 1]), w, sparse=True) ** 3).sum(), w, create_graph=True
    )
    assert first.layout is torch.sparse_coo
    (second,) = torch.autograd.grad(torch.sparse.sum(first), w)
    assert_values(second.to_dense(), [[6.0, 12], [36, 48], [0, 0]])


def test_sparse_gradient_of_a_bag_can_be_differentiated_again() -> None:
    w = tracked([[1.0, 2], [3, 4], [5, 6]])
    bags = F.embedding_bag(torch.tensor([[1, 0]]), w, mode="sum", sparse=True)
    (first,) = torch.autograd.grad((bags**3).sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(torch.sparse.sum(first), w)
    assert_values(second.to_dense(), [[48.0, 72], [48, 72], [0, 0]])


def test_sparse_tensor_can_be_copied_saved_and_loaded() -> None:
    s = tracer.track(coo(torch.tensor([1.0, 2, 3]), PLACES).coalesce(), True)
    assert copy.deepcopy(s).requires_grad
    file = io.BytesIO()
    torch.save(s, file)
    file.seek(0)
    loaded = torch.load(file)
    assert torch.equal(loaded.detach().to_dense(), s.detach().to_dense())
