"""Rules of ``ops_registry/rules/einsum.py``."""

from __future__ import annotations

import string

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.checking import Case, Make, case, plain, rand, run_case

import tracer
from ops_registry.errors import UnsupportedCallError
from ops_registry.rules.einsum import explicit_labels

C = torch.complex128


def einsum(rule: str, equation: str, *inputs: Make, label: str = "") -> Case:
    """A case of one equation."""
    return case(rule, lambda *operands: torch.einsum(equation, *operands), *inputs, label=f"{label}{equation}")


#: One operand: (equation, shape).
ONE = [
    ("ij->ij", (3, 4)),
    ("ij->ji", (3, 4)),
    ("ba", (3, 4)),
    ("ij->", (3, 4)),
    ("ij->j", (3, 4)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij->ji", (3, 3, 2)),
    ("iii->i", (3, 3, 3)),
    ("iii", (3, 3, 3)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("ijji->j", (2, 3, 3, 2)),
    ("...ii->...i", (2, 4, 3, 3)),
    ("...ij->...", (2, 4, 3, 3)),
    ("...->...", (2, 3)),
    ("i...->...", (2, 3, 4)),
    ("...i->i", (2, 3, 4)),
    ("->", ()),
    ("ij->i", (0, 3)),
    ("ij->i", (3, 0)),
    ("abcde->ecadb", (2, 3, 2, 1, 3)),
]

#: Two operands: (equation, shapes).
TWO = [
    ("ij,jk->ik", (3, 4), (4, 2)),
    ("ij,jk", (3, 4), (4, 2)),
    ("ij,kj->ki", (3, 4), (2, 4)),
    ("i,i->", (4,), (4,)),
    ("i,i", (4,), (4,)),
    ("i,i->i", (4,), (4,)),
    ("i,j->ij", (3,), (4,)),
    ("i,j->", (3,), (4,)),
    (",->", (), ()),
    (",i->i", (), (3,)),
    ("ij,k->k", (3, 4), (2,)),
    ("ij,j->i", (3, 4), (4,)),
    ("ij,ij->j", (3, 4), (3, 4)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bij,jk->bik", (2, 3, 4), (4, 5)),
    ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 2, 5)),
    ("abcde,dcf->fabe", (2, 3, 2, 3, 2), (3, 2, 2)),
    ("ii,i->i", (3, 3), (3,)),
    ("ii,ij->j", (3, 3), (3, 4)),
    ("ii,jj->ij", (3, 3), (2, 2)),
    ("iij,ijj->i", (3, 3, 2), (3, 2, 2)),
    ("ij,ij->ij", (1, 4), (3, 4)),
    ("ij,jk->ik", (3, 1), (4, 2)),
    ("ij,jk->ik", (3, 4), (1, 2)),
    ("ij,jk->ik", (3, 1), (1, 2)),
    ("ij,ij->", (1, 4), (3, 1)),
    ("ii,i->i", (1, 1), (3,)),
    ("ii,i->", (3, 3), (1,)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
    ("...ij,...jk->...ik", (5, 2, 3, 4), (2, 4, 2)),
    ("...ij,...jk->...ik", (3, 4), (5, 2, 4, 2)),
    ("...ij,...jk->...ik", (5, 1, 3, 4), (1, 2, 4, 2)),
    ("...ij,...jk", (2, 3, 4), (2, 4, 2)),
    ("...ij,...jk->ik", (2, 3, 4), (2, 4, 2)),
    ("i...,i...->...", (3, 2, 4), (3, 4)),
    ("...,...->...", (2, 3), (3,)),
    ("...a,a->...", (2, 3, 4), (4,)),
    ("ij,jk->ik", (0, 4), (4, 2)),
    ("ij,jk->ik", (3, 0), (0, 2)),
    ("bij,bjk->bik", (0, 3, 4), (0, 4, 5)),
    ("Ab, bC -> AC", (3, 4), (4, 2)),
]

#: Three operands and more.
MANY = [
    ("ij,jk,kl->il", (3, 4), (4, 2), (2, 5)),
    ("i,ij,j->", (3,), (3, 4), (4,)),
    ("ij,ik,il->jkl", (3, 2), (3, 4), (3, 2)),
    ("bn,anm,bm->ba", (2, 5), (3, 5, 4), (2, 4)),
    ("...i,...j,...k->...ijk", (2, 3), (2, 2), (2, 4)),
    ("ij,ij,ij->i", (3, 4), (1, 4), (3, 1)),
    ("ii,i,ij->j", (3, 3), (3,), (3, 2)),
    ("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 2), (2, 3)),
    ("a,b,c,d->abcd", (2,), (3,), (2,), (1,)),
    ("ij,jk,kl->il", (3, 0), (0, 2), (2, 5)),
]

CASES = [
    *(einsum("einsum_one", equation, rand(*shape)) for equation, shape in ONE),
    *(einsum("einsum_two", e, rand(*a), rand(*b, seed=1), label=f"{a}{b}") for e, a, b in TWO),
    *(einsum("einsum", e, *(rand(*s, seed=i) for i, s in enumerate(shapes))) for e, *shapes in MANY),
    einsum("einsum_one", "iij->ji", rand(3, 3, 2, dtype=C), label="complex"),
    einsum("einsum_two", "bij,bjk->bik", rand(2, 3, 4, dtype=C), rand(2, 4, 5, dtype=C), label="complex"),
    einsum("einsum_two", "i,j->ij", rand(3, dtype=C), rand(4), label="complex-real"),
    einsum("einsum", "ij,jk,kl->il", rand(3, 4, dtype=C), rand(4, 2, dtype=C), rand(2, 3, dtype=C), label="complex"),
    case("einsum_two", lambda a: torch.einsum("ij,jk->ik", a, a), rand(3, 3), label="operand-twice"),
    case("einsum", lambda a: torch.einsum("ij,jk,kl->il", a, a, a), rand(3, 3), label="operand-three-times"),
    case("einsum_two", lambda a, b: torch.einsum("ij,jk->ik", [a, b]), rand(3, 4), rand(4, 2), label="list"),
    case(
        "einsum_two", lambda a, b: torch.einsum(a, [0, 1], b, [1, 2], [2, 0]), rand(3, 4), rand(4, 2), label="sublist"
    ),
    case(
        "einsum_two",
        lambda a, b: torch.einsum(a, [..., 0, 1], b, [..., 1, 2]),
        rand(2, 3, 4),
        rand(4, 2),
        label="sublist-ellipsis",
    ),
    case(
        "einsum_two",
        lambda a, b: torch.einsum("ij,jk->ik", a.mT, b.expand(3, 2)),
        rand(3, 4),
        rand(2),
        label="strided",
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


LABELS = "abcd"
SIZES = dict(zip(LABELS, (2, 3, 1, 2), strict=True))


@given(
    terms=st.lists(st.text(LABELS, max_size=3), min_size=1, max_size=3),
    narrow=st.sets(st.integers(0, 8)),
    data=st.data(),
)
def test_random_equations(terms: list[str], narrow: set[int], data: st.DataObject) -> None:
    present = sorted(set("".join(terms)))
    result = "".join(data.draw(st.permutations(present)))[: data.draw(st.integers(0, len(present)))]
    shapes = [
        # An operand in `narrow` has length 1 wherever its labels are not repeated.
        [1 if i in narrow and term.count(label) == 1 else SIZES[label] for label in term]
        for i, term in enumerate(terms)
    ]
    makers = [rand(*shape, seed=i) for i, shape in enumerate(shapes)]
    run_case(einsum("einsum", f"{','.join(terms)}->{result}", *makers), torch.device("cpu"))


def test_labels_of_an_ellipsis_are_aligned_at_the_right() -> None:
    assert explicit_labels("...ij,...jk", (4, 3)) == (["abij", "bjk"], "abik")


def test_labels_of_an_implicit_result_are_sorted() -> None:
    assert explicit_labels("Zb,bA", (2, 2)) == (["Zb", "bA"], "AZ")


def test_ellipsis_that_is_not_in_the_result_is_summed() -> None:
    assert explicit_labels("...i->i", (3,)) == (["abi"], "i")


def test_too_few_labels_for_an_operand_are_an_error() -> None:
    with pytest.raises(ValueError, match="does not fit the rank"):
        torch.einsum("i,j->ij", tracer.track(torch.ones(2, 2), True), torch.ones(2))


def test_wrong_number_of_operands_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 2 operands, 1 were given"):
        torch.einsum("i,j->ij", tracer.track(torch.ones(2), True))


def test_more_axes_than_letters_are_refused() -> None:
    with pytest.raises(UnsupportedCallError, match="more than 52 labels"):
        explicit_labels(f"...{string.ascii_letters}", (53,))


def test_product_with_a_constant_keeps_the_constant_alone(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 2, device=device), True)
    constant = torch.ones(2, 2, device=device)
    (kept,) = [k for k in torch.einsum("ij,jk->ik", x, constant)._node.saved if isinstance(k, torch.Tensor)]
    assert kept.data_ptr() == constant.data_ptr()


def test_infinite_gradient_leaves_zeros_off_the_diagonal(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 2, device=device), True)
    torch.einsum("ii->", x).backward(torch.tensor(torch.inf, device=device))
    assert plain(x.grad).tolist() == [[torch.inf, 0.0], [0.0, torch.inf]]


def test_path_of_pairs_is_followed(device: torch.device) -> None:
    a, b, c = (tracer.track(torch.rand(2, 2, device=device), True) for _ in range(3))
    by_path = torch._VF.einsum("ij,jk,kl->il", (a, b, c), path=[1, 2, 0, 1])
    torch.testing.assert_close(plain(by_path), plain(a) @ (plain(b) @ plain(c)))
    first, _ = by_path._node.parents  # a stands first in the last step: the others were contracted before
    assert first is a._node


def test_a_label_of_length_one_is_broadcast_and_its_gradient_summed(device: torch.device) -> None:
    # HIPS/autograd#376
    a = tracer.tensor([3.0, 5.0], device=device, requires_grad=True)
    b = tracer.tensor([7.0], device=device, requires_grad=True)
    torch.einsum("k,k->", a, b).backward()
    assert a.grad.tolist() == [7.0, 7.0]
    assert b.grad.tolist() == [8.0]


def test_a_repeated_label_sends_its_gradient_to_the_diagonal(device: torch.device) -> None:
    # HIPS/autograd#242
    x = tracer.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    torch.einsum("kk->k", x).backward(torch.tensor([5.0, 7.0], device=device))
    assert x.grad.tolist() == [[5.0, 0.0], [0.0, 7.0]]
