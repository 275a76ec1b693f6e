"""Rules of ``ops_registry/rules/sparse_products.py``, dense rules met with a sparse factor, and what people build of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.analytic import assert_values
from support.checking import Case, case, plain, rand, run_case
from support.leaves import tracked
from support.sparse import PLACES, batch, coo, csr, long

import nn
import tracer

COMPLEX = torch.complex128
T = torch.Tensor


def gaps(v: T) -> T:
    """Its second row has no entries."""
    return torch.sparse_csr_tensor(long((0, 1, 1, 3), v), long((2, 0, 2), v), v, (3, 3))


def constant(x: T, layout: str) -> T:
    """A sparse matrix of two rows and three columns that wants no gradient."""
    made = coo(torch.tensor([1.5, -2.0, 0.5], dtype=x.dtype, device=x.device), PLACES).coalesce()
    return made if layout == "coo" else made.to_sparse(layout=getattr(torch, f"sparse_{layout}"))


#: torch loses the second derivative by values without a word, or has none.
SLOPE: dict[str, Any] = {"second": "differences"}
#: torch has no first one either: complex values and batches of compressed layouts.
ALONE: dict[str, Any] = {"second": "differences", "torch_agrees": False}

mm, addmm, sampled = torch.sparse.mm, torch.sparse.addmm, torch.sparse.sampled_addmm

PRODUCTS = [
    case("_sparse_mm", lambda v, x: mm(coo(v), x) ** 2, rand(4), rand(3, 5), **SLOPE),
    case(
        "_sparse_mm",
        lambda v, x: mm(coo(v), x) ** 2,
        rand(4, dtype=COMPLEX),
        rand(3, 5, dtype=COMPLEX),
        **SLOPE,
        label="complex",
    ),
    case("_sparse_mm", lambda v, x: mm(csr(v), x) ** 2, rand(3), rand(3, 5), **SLOPE, label="csr"),
    case(
        "_sparse_mm",
        lambda v, x: mm(csr(v), x) ** 2,
        rand(3, dtype=COMPLEX),
        rand(3, 5, dtype=COMPLEX),
        **ALONE,
        label="csr-complex",
    ),
    case("_sparse_mm", lambda v, x: mm(csr(v).to_sparse_csc(), x) ** 2, rand(3), rand(3, 5), **ALONE, label="csc"),
    case("_sparse_mm", lambda v, x: mm(coo(v).t(), x) ** 2, rand(4), rand(2, 5), **SLOPE, label="transposed"),
    case("_sparse_mm", lambda x, v: mm(x, coo(v)) ** 2, rand(5, 2), rand(4), **SLOPE, label="dense-by-sparse"),
    case(
        "_sparse_mm",
        lambda v, w: mm(coo(v), coo(w).t()).to_dense() ** 2,
        rand(4),
        rand(4, seed=1),
        **SLOPE,
        label="sparse-by-sparse",
    ),
    case("_sparse_mm", lambda v, x: mm(coo(v), x.t()) ** 2, rand(4), rand(5, 3), **SLOPE, label="strided"),
    case("_sparse_mm", lambda v, x: mm(coo(v), x) ** 2, rand(4), rand(3, 0), **SLOPE, label="no-columns"),
    case(
        "_sparse_mm",
        lambda v, x: mm(coo(v, ((), ())), x) ** 2,
        rand(0),
        rand(3, 5),
        needs=((1,), (0, 1)),
        **ALONE,
        label="no-entries",
    ),
    *[
        case(
            "_sparse_mm",
            lambda x, layout=layout: mm(constant(x, layout), x) ** 2,
            rand(3, 5),
            label=f"constant-{layout}",
        )
        for layout in ("coo", "csr", "csc")
    ],
    case("_sparse_mm", lambda x: mm(x, constant(x, "coo")) ** 2, rand(5, 2), label="constant-right"),
    case(
        "_sparse_addmm",
        lambda b, v, x: addmm(b, coo(v), x, beta=0.5, alpha=2) ** 2,
        rand(2, 5),
        rand(4),
        rand(3, 5),
        **SLOPE,
    ),
    case(
        "_sparse_addmm",
        lambda b, v, x: addmm(b, csr(v), x, beta=0.5) ** 2,
        rand(2, 5),
        rand(3),
        rand(3, 5),
        **SLOPE,
        label="csr",
    ),
    case(
        "_sparse_addmm",
        lambda b, x: addmm(b, constant(x, "coo"), x, alpha=3) ** 2,
        rand(2, 5),
        rand(3, 5),
        label="constant",
    ),
    case(
        "_sparse_addmm",
        lambda b, v, x: addmm(b, coo(v), x, beta=0.5, alpha=2) ** 2,
        *(rand(2, 5, dtype=COMPLEX), rand(4, dtype=COMPLEX), rand(3, 5, dtype=COMPLEX)),
        **SLOPE,
        label="complex",
    ),
    case(
        "sparse_sampled_addmm",
        lambda v, a, b: sampled(csr(v), a, b, beta=0.5, alpha=2).to_dense() ** 2,
        rand(3),
        rand(2, 4),
        rand(4, 3),
        **SLOPE,
    ),
    case(
        "sparse_sampled_addmm",
        lambda v, a, b: sampled(csr(v), a, b, beta=0.5, alpha=2).to_dense() ** 2,
        *(rand(3, dtype=COMPLEX), rand(2, 4, dtype=COMPLEX), rand(4, 3, dtype=COMPLEX)),
        **ALONE,
        label="complex",
    ),
    case(
        "sparse_sampled_addmm",
        lambda v, a, b: sampled(batch(v), a, b, beta=0.5, alpha=2).to_dense() ** 2,
        *(rand(2, 3), rand(2, 2, 4), rand(2, 4, 3)),
        torch_agrees=False,
        second=False,
        label="batch",
    ),
    # Two gradients of one batch cannot be added up: torch's sum of two loses the batch.
    case(
        "sparse_sampled_addmm",
        lambda v, a, b: sampled(batch(v), a, b, beta=0.5, alpha=2).to_dense() ** 2,
        *(rand(2, 3), rand(2, 2, 4), rand(2, 4, 3)),
        **ALONE,
        needs=((0,), (1,), (2,)),
        label="batch-twice",
    ),
    case(
        "sparse_sampled_addmm",
        lambda a, b: sampled(constant(a, "csr"), a.t(), b).to_dense() ** 2,
        rand(4, 2),
        rand(4, 3),
        **SLOPE,
        label="constant",
    ),
    *[
        case(
            "_sparse_mm_reduce_impl",
            lambda v, x, how=how: mm(gaps(v), x, how) ** 2,
            rand(3),
            rand(3, 5),
            **SLOPE,
            label=how,
        )
        for how in ("sum", "mean", "amax", "amin")
    ],
    *[
        case(
            "_sparse_mm_reduce_impl",
            lambda x, how=how: mm(constant(x, "csr"), x, how) ** 2,
            rand(3, 5),
            **SLOPE,
            label=f"constant-{how}",
        )
        for how in ("mean", "amax")
    ],
]

#: Rules of dense ops with a sparse factor.
DENSE = [
    case("matmul", lambda v, x: (coo(v) @ x) ** 2, rand(4), rand(3, 5), **SLOPE, label="coo"),
    case("matmul", lambda v, x: (csr(v) @ x) ** 2, rand(3), rand(3, 5), **SLOPE, label="csr"),
    case("matmul", lambda v, x: (x @ coo(v)) ** 2, rand(4), rand(5, 2), **SLOPE, label="coo-right"),
    case("matmul", lambda v, x: (coo(v) @ x) ** 2, rand(4), rand(3), **SLOPE, label="coo-vector"),
    case("mm", lambda v, x: torch.mm(coo(v), x) ** 2, rand(4), rand(3, 5), **SLOPE, label="coo"),
    case("mm", lambda v, x: torch.spmm(coo(v), x) ** 2, rand(4), rand(3, 5), **SLOPE, label="spmm"),
    case("mm", lambda v, x: torch.mm(csr(v), x) ** 2, rand(3), rand(3, 5), **SLOPE, label="csr"),
    case("mv", lambda v, x: torch.mv(coo(v), x) ** 2, rand(4), rand(3), **SLOPE, label="coo"),
    case("mv", lambda v, x: torch.mv(csr(v), x) ** 2, rand(3), rand(3), **SLOPE, label="csr"),
    case(
        "addmm",
        lambda b, v, x: torch.addmm(b, coo(v), x, alpha=2) ** 2,
        rand(2, 5),
        rand(4),
        rand(3, 5),
        **SLOPE,
        label="coo",
    ),
    case(
        "addmm",
        lambda b, v, x: torch.addmm(b, csr(v), x, beta=2) ** 2,
        rand(5),
        rand(3),
        rand(3, 5),
        **SLOPE,
        label="csr",
    ),
    *[
        case("matmul", lambda x, layout=layout: (constant(x, layout) @ x) ** 2, rand(3, 5), label=f"constant-{layout}")
        for layout in ("coo", "csr", "csc")
    ],
    *[
        case(
            "linear",
            lambda x, layout=layout: F.linear(x, constant(x, layout)) ** 2,
            rand(5, 3),
            label=f"constant-{layout}",
        )
        for layout in ("coo", "csr")
    ],
    case(
        "mul",
        lambda v, w: torch.sparse.sum(coo(v, PLACES).coalesce() * w) ** 2,
        rand(3),
        rand(2, 3),
        **SLOPE,
        label="coo",
    ),
    case("mul", lambda v, w: torch.sparse.sum(coo(v) * w) ** 2, rand(4), rand(), **SLOPE, label="coo-by-number"),
    case("mul", lambda v, w: (csr(v) * w).to_dense() ** 2, rand(3), rand(2, 3), **ALONE, label="csr"),
    case("add", lambda v, w: (w + coo(v)) ** 2, rand(4), rand(2, 3), **SLOPE, label="coo"),
    case("add", lambda v, w: (w * 1).add_(coo(v), alpha=2) ** 2, rand(4), rand(2, 3), **SLOPE, label="coo-in-place"),
    case("div", lambda v, w: torch.sparse.sum(coo(v) / w) ** 2, rand(4), rand(low=1.0), **SLOPE, label="coo"),
]

CASES = [*PRODUCTS, *DENSE]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


# gradients of sparse matrices

X = torch.arange(6.0, dtype=torch.float64).view(3, 2)

#: The gradient of a sparse leaf is sparse with its entries, or, where torch says so, dense.
LEAVES: dict[str, tuple[Callable[[T], T], bool]] = {
    "sparse.mm": (lambda s: mm(s, X), True),
    "sparse.addmm": (lambda s: addmm(torch.ones(2, 2, dtype=torch.float64), s, X), True),
    "mm": (lambda s: torch.mm(s, X), False),
    "matmul": (lambda s: s @ X, False),
    "mv": (lambda s: torch.mv(s, X[:, 0]), False),
    "addmm": (lambda s: torch.addmm(torch.ones(2, 2, dtype=torch.float64), s, X), False),
}


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("use", LEAVES)
def test_gradient_of_a_sparse_matrix_has_the_layout_that_torch_gives(use: str, layout: str) -> None:
    function, sparse = LEAVES[use]
    found = []
    for make in (lambda t: tracer.track(t, True), lambda t: t.requires_grad_()):
        s = make(constant(X, layout))
        found.append(plain(torch.autograd.grad(function(s).square().sum(), s)[0]))
    ours, theirs = found
    assert ours.layout is theirs.layout is (s.layout if sparse else torch.strided)
    torch.testing.assert_close(ours.to_dense(), theirs.to_dense())
    if sparse:
        assert ours._nnz() == 3


def test_gradient_of_a_sparse_matrix_can_be_differentiated_again() -> None:
    s = tracer.track(constant(X, "coo"), True)
    (first,) = torch.autograd.grad((mm(s, X) ** 3).sum(), s, create_graph=True)
    (second,) = torch.autograd.grad(torch.sparse.sum(first), s)
    assert second.layout is torch.sparse_coo
    slopes = 6 * plain(mm(s, X)) * torch.tensor([[4.0, 5], [4, 6]], dtype=torch.float64)
    torch.testing.assert_close(plain(second).to_dense()[:, 2], (slopes * X[2]).sum(1))


def test_sparse_matrix_of_torchs_autograd_gets_its_gradient() -> None:
    s, x = constant(X, "coo").requires_grad_(), tracer.track(X, True)
    mm(s, x).sum().backward()
    assert s.grad is not None
    assert s.grad.layout is torch.sparse_coo
    assert s.grad.to_dense().tolist() == [[0, 0, 9], [1, 0, 9]]


def test_no_entry_was_chosen_in_a_row_without_entries() -> None:
    v, x = tracked([1.0, 2, 3]), tracer.track(X, True)
    mm(gaps(v), x, "amax")[1].sum().backward()
    assert_values(v.grad, [0.0, 0, 0])
    assert x.grad is not None
    assert not x.grad.any()


def test_first_of_equal_entries_takes_the_gradient_of_a_maximum() -> None:
    v = tracked([1.0, 2, 2])
    mm(gaps(v), torch.ones(3, 1, dtype=torch.float64), "amax")[2].backward()
    assert_values(v.grad, [0.0, 1, 0])


def test_maximum_over_no_entries_at_all_has_no_slope() -> None:
    none = torch.sparse_csr_tensor([0, 0, 0], [], tracked([]), (2, 3))
    x = tracer.track(X, True)
    mm(none, x, "amax").sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_reduction_is_intercepted_under_its_own_name_too() -> None:
    v, x = tracked([1.0, 2, 3]), tracer.track(X, True)
    out, chosen = torch._C._sparse._sparse_mm_reduce_impl(gaps(v), x, "amin")
    assert out.requires_grad
    assert not chosen.requires_grad


def test_addmm_without_beta_does_not_read_its_input() -> None:
    b, v = tracked([[float("nan")] * 2] * 2), tracked([1.0, 2, 3, 4])
    out = addmm(b, coo(v), X, beta=0)
    out.sum().backward()
    assert_values(b.grad, [[0.0, 0], [0, 0]])
    assert_values(v.grad, [9.0, 1, 9, 1])


def test_no_dense_product_is_made_for_the_gradient_of_a_sparse_factor() -> None:
    # Rows and columns in the millions: a dense product would have 10^13 elements.
    size = 3_000_000
    v = tracked([1.0, 2])
    made = torch.sparse_coo_tensor([[0, size - 1], [5, 7]], v, (size, size))
    x = torch.ones(size, 1, dtype=torch.float64)
    mm(made, x)[-1].sum().backward()
    assert_values(v.grad, [0.0, 1])


# what people build of them


def edges() -> tuple[T, T]:
    """Sources and targets of ten edges among five nodes."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, (2, 10), generator=generator).unbind()


def graph_convolution(x: T, w: T, weights: T) -> T:
    """The normalised adjacency matrix, with weights of the edges, times what a layer makes of the nodes."""
    source, target = edges()
    degree = torch.zeros(5, dtype=x.dtype).index_add(0, target, weights.exp()) + 1
    normalised = weights.exp() / degree.index_select(0, target)
    adjacency = torch.sparse_coo_tensor(torch.stack([target, source]), normalised, (5, 5)).coalesce()
    return torch.sparse.mm(adjacency, (x @ w).relu())


def message_passing(x: T, w: T, weights: T) -> T:
    """The same by gathering and scattering."""
    source, target = edges()
    degree = torch.zeros(5, dtype=x.dtype).index_add(0, target, weights.exp()) + 1
    messages = (x @ w).relu()[source] * (weights.exp() / degree[target]).unsqueeze(1)
    return torch.zeros(5, w.shape[1], dtype=x.dtype).scatter_add(0, target.unsqueeze(1).expand_as(messages), messages)


def attention(x: T, w: T, weights: T) -> T:
    """Attention over the neighbours: a softmax along the rows of a sparse matrix."""
    source, target = edges()
    h = x @ w
    scores = F.leaky_relu((h[source] * h[target]).sum(1) + weights)
    places = torch.stack([target, source])
    return torch.sparse.mm(torch.sparse.softmax(torch.sparse_coo_tensor(places, scores, (5, 5)), 1), h)


def sampled_scores(x: T, w: T, weights: T) -> T:
    """Scores of the edges alone out of all pairs of nodes, then a product with them."""
    source, target = edges()
    places = torch.stack([target, source])
    adjacency = torch.sparse_coo_tensor(places, torch.ones_like(weights.detach()), (5, 5)).coalesce().to_sparse_csr()
    h = x @ w
    return torch.sparse.mm(torch.sparse.sampled_addmm(adjacency, h, h.t(), beta=0.1), h) * weights.sum()


NETWORKS = {f.__name__: f for f in (graph_convolution, message_passing, attention, sampled_scores)}


@pytest.mark.parametrize("name", NETWORKS)
def test_graph_network_has_torchs_gradients_and_those_of_differences(name: str, device: torch.device) -> None:
    # torch has no second derivatives through sparse values.
    run_case(case(name, NETWORKS[name], rand(5, 3), rand(3, 4), rand(10), **SLOPE), device)


def test_graph_convolution_equals_message_passing_to_second_order() -> None:
    found = []
    for network in (graph_convolution, message_passing):
        leaves = [tracer.track(make(torch.device("cpu")), True) for make in (rand(5, 3), rand(3, 4), rand(10))]
        first = torch.autograd.grad(network(*leaves).square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        found.append([plain(g) for g in (*first, *second)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_graph_network_with_a_constant_adjacency_trains_as_in_torch(layout: str) -> None:
    losses = []
    for tracking in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
        adjacency = torch.sparse_coo_tensor(
            torch.stack(edges()), torch.ones(10, dtype=torch.float64), (5, 5)
        ).coalesce()
        adjacency = adjacency if layout == "coo" else adjacency.to_sparse_csr()
        x = torch.randn(5, 3, dtype=torch.float64)
        if tracking:
            nn.track(model)
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(5):
            optimiser.zero_grad()
            loss = F.cross_entropy(
                adjacency @ model[2](model[1](torch.sparse.mm(adjacency, model[0](x)))), torch.tensor([0, 1, 0, 1, 1])
            )
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("optimiser", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_embedding_trains_as_in_torch(optimiser: Any) -> None:
    weights = []
    for tracking in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(6, 3, sparse=True))
        bags = torch.nn.EmbeddingBag(6, 3, mode="sum", sparse=True)
        model.append(bags)
        if tracking:
            nn.track(model)
        steps = optimiser(model.parameters(), lr=0.1)
        for _ in range(3):
            steps.zero_grad()
            loss = model[0](torch.tensor([1, 2, 1])).square().sum() + model[1](torch.tensor([[0, 5, 5]])).square().sum()
            loss.backward()
            assert all(p.grad.layout is torch.sparse_coo for p in model.parameters())
            steps.step()
        weights.append([plain(p) for p in model.parameters()])
    torch.testing.assert_close(*weights)
