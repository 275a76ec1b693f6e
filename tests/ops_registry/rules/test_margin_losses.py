"""Rules of ``ops_registry/rules/margin_losses.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, rand, run_case

import tracer

aten = torch.ops.aten
nn = torch._C._nn

REDUCTIONS = ("none", "mean", "sum")
NONE, MEAN, SUM = 0, 1, 2
f64 = torch.float64


def signs(*shape: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A target of ones and minus ones, as a function of the tensor whose dtype and device it takes."""

    def make(like: torch.Tensor) -> torch.Tensor:
        flat = torch.arange(torch.Size(shape).numel()) % 2 * 2 - 1
        return flat.reshape(shape).to(like.device, like.dtype)

    return make


def indices(data: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Class indices, as a function of the tensor whose device they take."""
    return lambda like: torch.tensor(data, device=like.device)


def class_weights(like: torch.Tensor) -> torch.Tensor:
    """A weight for each of 4 classes."""
    return torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=like.dtype, device=like.device)


y, y0, y1 = signs(3, 4), signs(), signs(3)
hard = indices([0, 3, 1])
labels = indices([[0, 2, -1, 1], [3, -1, 0, 0], [1, 2, 3, 0]])

CASES = [
    *(
        case("soft_margin_loss", lambda x, r=r: F.soft_margin_loss(x, y(x), reduction=r), rand(3, 4), label=r)
        for r in REDUCTIONS
    ),
    # torch gives the target of soft_margin_loss no gradient: central differences decide.
    *(
        case(
            "soft_margin_loss",
            lambda x, t, r=r: nn.soft_margin_loss(x, t, r),
            rand(3, 4),
            rand(3, 4, seed=1),
            label=f"target-{r}",
            torch_agrees=False,
        )
        for r in (NONE, MEAN, SUM)
    ),
    case("soft_margin_loss", lambda x: F.soft_margin_loss(x, y0(x)), rand(), label="0-d"),
    case("soft_margin_loss", lambda x: F.soft_margin_loss(x.t(), y(x)), rand(4, 3), label="transposed"),
    case("soft_margin_loss", lambda x: nn.soft_margin_loss(x, x.detach(), SUM), rand(0, 3), label="empty"),
    # torch has no second derivatives of multi_margin_loss and multilabel_margin_loss; tests of their own have.
    *(
        case(
            "multi_margin_loss",
            lambda x, r=r, p=p, w=w: F.multi_margin_loss(x, hard(x), p, 0.8, w and class_weights(x), reduction=r),
            rand(3, 4),
            label=f"{r}-{p}{'-weights' if w else ''}",
            second="differences",
        )
        for r in REDUCTIONS
        for p in (1, 2)
        for w in (None, True)
    ),
    case(
        "multi_margin_loss", lambda x: F.multi_margin_loss(x, indices(2)(x)), rand(4), label="1-d", second="differences"
    ),
    case(
        "multi_margin_loss",
        lambda x: F.multi_margin_loss(x.t(), hard(x)),
        rand(4, 3),
        label="transposed",
        second="differences",
    ),
    *(
        case(
            "multi_margin_loss_backward",
            lambda g, x, r=r, p=p, w=w: aten.multi_margin_loss_backward(g, x, hard(x), p, 1, w and class_weights(x), r),
            rand(*(() if r else (3,))),
            rand(3, 4),
            label=f"{r}-{p}{'-weights' if w else ''}",
            second="differences",
            torch_agrees=False,
        )
        for r in (NONE, MEAN, SUM)
        for p in (1, 2)
        for w in (None, True)
    ),
    *(
        case(
            "multilabel_margin_loss",
            lambda x, r=r: F.multilabel_margin_loss(x, labels(x), reduction=r),
            rand(3, 4),
            label=r,
            second="differences",
        )
        for r in REDUCTIONS
    ),
    case(
        "multilabel_margin_loss",
        lambda x: F.multilabel_margin_loss(x, indices([2, 0, -1, 1])(x)),
        rand(4),
        label="1-d",
        second="differences",
    ),
    case(
        "multilabel_margin_loss",
        lambda x: F.multilabel_margin_loss(x.t(), labels(x)),
        rand(4, 3),
        label="transposed",
        second="differences",
    ),
    *(
        case(
            "multilabel_margin_loss_backward",
            lambda g, x, r=r: aten.multilabel_margin_loss_backward(
                g, x, labels(x), r, aten.multilabel_margin_loss_forward(x.detach(), labels(x), r)[1].detach()
            ),
            rand(*(() if r else (3,))),
            rand(3, 4),
            label=str(r),
            second="differences",
            torch_agrees=False,
        )
        for r in (NONE, MEAN, SUM)
    ),
    *(
        case(
            "margin_ranking_loss",
            lambda a, b, t, r=r: F.margin_ranking_loss(a, b, t, 0.3, reduction=r),
            rand(3, 4),
            rand(3, 4, seed=1),
            rand(3, 4, seed=2),
            label=r,
        )
        for r in REDUCTIONS
    ),
    case(
        "margin_ranking_loss",
        lambda a, b: torch.margin_ranking_loss(a, b, y(a), reduction=MEAN),
        rand(3, 1),
        rand(1, 4),
        label="broadcast",
    ),
    *(
        case(
            "hinge_embedding_loss",
            lambda x, r=r: F.hinge_embedding_loss(x, y(x), margin=0.8, reduction=r),
            rand(3, 4),
            label=r,
        )
        for r in REDUCTIONS
    ),
    case("hinge_embedding_loss", lambda x: F.hinge_embedding_loss(x, y0(x)), rand(), label="0-d"),
    *(
        case(
            "cosine_embedding_loss",
            lambda a, b, r=r, m=m: F.cosine_embedding_loss(a, b, y1(a), margin=m, reduction=r),
            rand(3, 4),
            rand(3, 4, seed=1),
            label=f"{r}-{m}",
        )
        for r in REDUCTIONS
        for m in (0.0, -0.9)
    ),
    case(
        "cosine_embedding_loss",
        lambda a, b: F.cosine_embedding_loss(a, b, y0(a), margin=-0.9),
        rand(4),
        rand(4, seed=1),
        label="1-d",
    ),
    *(
        case(
            "triplet_margin_loss",
            lambda a, p, n, r=r, swap=swap, power=power: F.triplet_margin_loss(
                a, p, n, 2.0, power, swap=swap, reduction=r
            ),
            rand(3, 4),
            rand(3, 4, seed=1),
            rand(3, 4, seed=2),
            label=f"{r}-{power}{'-swap' if swap else ''}",
        )
        for r in REDUCTIONS
        for swap in (False, True)
        for power in (2.0, 3.0)
    ),
    case("triplet_margin_loss", F.triplet_margin_loss, rand(4), rand(4, seed=1), rand(4, seed=2), label="1-d"),
    # Python-level losses have no rule: they are their parts.
    *(
        case(
            "log_sigmoid",
            lambda x, r=r: F.multilabel_soft_margin_loss(x, y(x).clamp(0), reduction=r),
            rand(3, 4),
            label=f"multilabel-{r}",
        )
        for r in REDUCTIONS
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_second_derivative_of_multi_margin_loss(p: int, reduction: str, device: torch.device) -> None:
    """Equal to that of the formula in torch's documentation, written with small ops."""
    data = rand(3, 4)(device)
    cotangent = rand(*((3,) if reduction == "none" else ()), seed=1)(device)
    target, weight = hard(data), class_weights(data)

    def formula(x: torch.Tensor) -> torch.Tensor:
        others = torch.ones_like(data).scatter(1, target[:, None], 0)
        terms = (0.8 - x.gather(1, target[:, None]) + x).clamp_min(0) ** p
        loss = (terms * others).sum(1) * weight[target] / 4
        return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()

    ours, theirs = tracer.track(data.clone(), True), data.clone().requires_grad_()
    out = F.multi_margin_loss(ours, target, p, 0.8, weight, reduction=reduction)
    (g,) = torch.autograd.grad(out, ours, cotangent, create_graph=True)
    (g_true,) = torch.autograd.grad(formula(theirs), theirs, cotangent, create_graph=True)
    (h,) = torch.autograd.grad((g * rand(3, 4, seed=2)(device)).sum(), ours, allow_unused=True)
    (h_true,) = torch.autograd.grad((g_true * rand(3, 4, seed=2)(device)).sum(), theirs)
    h = torch.zeros_like(data) if h is None else h
    torch.testing.assert_close(h.detach().as_subclass(torch.Tensor), h_true)


def test_second_derivative_of_multilabel_margin_loss_is_zero(device: torch.device) -> None:
    x = tracer.track(rand(3, 4)(device), True)
    (g,) = torch.autograd.grad(F.multilabel_margin_loss(x, labels(x)), x, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), x)
    assert h.shape == x.shape and not h.any()


def test_cosine_embedding_loss_refuses_a_target_of_another_rank() -> None:
    with pytest.raises(RuntimeError, match="one dimension more"):
        F.cosine_embedding_loss(tracer.track(torch.ones(3, 4), True), torch.ones(3, 4), torch.ones(()))


def test_triplet_margin_loss_refuses_different_ranks() -> None:
    with pytest.raises(RuntimeError, match="dimensions"):
        torch.triplet_margin_loss(tracer.track(torch.ones(3, 4), True), torch.ones(4), torch.ones(3, 4))


def test_cosine_embedding_loss_of_zero_vectors_has_a_finite_gradient(device: torch.device) -> None:
    x = tracer.track(torch.zeros(1, 3, device=device), True)
    F.cosine_embedding_loss(x, torch.zeros(1, 3, device=device), torch.ones(1, device=device)).backward()
    assert x.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_soft_margin_loss_of_a_huge_margin_does_not_overflow(device: torch.device) -> None:
    x = tracer.track(torch.tensor([-1e4, 1e4], dtype=f64, device=device), True)
    nn.soft_margin_loss(x, torch.ones(2, dtype=f64, device=device), SUM).backward()
    assert x.grad.tolist() == [-1.0, 0.0]


def test_soft_margin_loss_of_complex_numbers_equals_differences() -> None:
    z = torch.tensor([0.3 + 0.4j, -0.2 + 1.1j], dtype=torch.complex128)
    y = torch.tensor([1.0 - 0.5j, 0.7 + 0.2j], dtype=torch.complex128)
    assert tracer.gradcheck(F.soft_margin_loss, (tracer.track(z, True), tracer.track(y, True)))


def test_multi_margin_loss_of_one_number_is_flat_to_second_order(device: torch.device) -> None:
    x = tracer.tensor(0.5, dtype=torch.float64, device=device, requires_grad=True)
    (g,) = torch.autograd.grad(F.multi_margin_loss(x, torch.tensor(0, device=device), p=2), x, create_graph=True)
    assert g.item() == 0 and torch.autograd.grad(g, x)[0].item() == 0
