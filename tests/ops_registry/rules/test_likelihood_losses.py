"""Rules of ``ops_registry/rules/likelihood_losses.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, rand, run_case

import tracer
from ops_registry.errors import UnsupportedCallError

aten = torch.ops.aten
nn = torch._C._nn

REDUCTIONS = ("none", "mean", "sum")
NONE, MEAN, SUM = 0, 1, 2
f64 = torch.float64


def probability(*shape: int, seed: int = 0) -> Any:
    """Random numbers inside (0, 1)."""
    return rand(*shape, low=0.05, high=0.95, seed=seed)


def on_classes(loss: Callable[..., torch.Tensor], target: Any, **options: Any) -> Callable[..., torch.Tensor]:
    """The loss as a function of its input alone, given class indices; options that are lists become tensors."""

    def function(x: torch.Tensor) -> torch.Tensor:
        made = {
            k: torch.tensor(v, dtype=x.dtype, device=x.device) if isinstance(v, list) else v for k, v in options.items()
        }
        return loss(x, torch.tensor(target, device=x.device), **made)

    return function


#: Targets and further arguments for an input of 4 classes, over all ranks.
CLASS_TARGETS = [
    ("1-d", (4,), 2),
    ("2-d", (3, 4), [0, 3, 1]),
    ("3-d", (2, 4, 3), [[0, 3, 1], [2, 2, 0]]),
    ("4-d", (1, 4, 2, 2), [[[0, 3], [2, 1]]]),
    ("5-d", (1, 4, 1, 2, 2), [[[[0, 3], [2, 1]]]]),
]
WEIGHTS = [0.5, 1.0, 2.0, 0.25]


def number(value: Any, like: torch.Tensor) -> torch.Tensor:
    """A constant tensor."""
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def weights(like: torch.Tensor) -> torch.Tensor:
    """A weight for each of 4 classes."""
    return number(WEIGHTS, like)


CASES = [
    *(
        case("nll_loss_nd", on_classes(F.nll_loss, target, reduction=r), rand(*shape), label=f"{label}-{r}")
        for label, shape, target in CLASS_TARGETS
        for r in REDUCTIONS
    ),
    *(
        case(
            "nll_loss_nd",
            on_classes(F.nll_loss, target, reduction=r, weight=WEIGHTS, ignore_index=2),
            rand(*shape),
            label=f"{label}-{r}-weights-ignored",
        )
        for label, shape, target in CLASS_TARGETS
        for r in REDUCTIONS
        if label != "1-d"
    ),
    case("nll_loss", on_classes(nn.nll_loss, [0, 3, 1], reduction=MEAN), rand(3, 4)),
    case("nll_loss2d", on_classes(nn.nll_loss2d, [[[0, 3], [2, 1]]], reduction=MEAN), rand(1, 4, 2, 2)),
    case(
        "nll_loss_nd",
        lambda x: F.nll_loss(x.t(), torch.tensor([0, 2, 1], device=x.device)),
        rand(4, 3),
        label="transposed",
    ),
    case(
        "nll_loss_nd",
        lambda x: F.nll_loss(x.transpose(1, 2), torch.ones(2, 3, dtype=torch.long, device=x.device)),
        rand(2, 3, 4),
        label="3-d-transposed",
    ),
    *(
        case(
            "nll_loss_nd",
            lambda x, s=s: F.nll_loss(x, torch.ones(s, dtype=torch.long, device=x.device), reduction="none"),
            rand(*shape),
            label=f"empty-{shape}",
        )
        for shape, s in [((0, 4), (0,)), ((2, 4, 0), (2, 0)), ((0, 4, 3), (0, 3))]
    ),
    *(
        case(
            "nll_loss_backward",
            lambda g, x, r=r: aten.nll_loss_backward(
                g, x, torch.tensor([0, 3, 1], device=x.device), None, r, -100, number(3.0, x)
            ),
            rand(*(() if r else (3,))),
            rand(3, 4),
            label=str(r),
        )
        for r in (NONE, MEAN, SUM)
    ),
    *(
        case(
            "nll_loss2d_backward",
            lambda g, x, r=r: aten.nll_loss2d_backward(
                g, x, torch.tensor([[[0, 3], [2, 1]]], device=x.device), None, r, -100, number(4.0, x)
            ),
            rand(*(() if r else (1, 2, 2))),
            rand(1, 4, 2, 2),
            label=str(r),
        )
        for r in (NONE, MEAN, SUM)
    ),
    *(
        case(
            "cross_entropy_loss",
            on_classes(F.cross_entropy, target, reduction=r, **options),
            rand(*shape),
            label=f"{label}-{r}-{more}",
        )
        for label, shape, target in CLASS_TARGETS
        for r in REDUCTIONS
        for more, options in [
            ("plain", {}),
            ("weights-ignored", {"weight": WEIGHTS, "ignore_index": 3}),
            ("smoothing", {"label_smoothing": 0.2, "ignore_index": 3}),
            ("smoothing-weights", {"label_smoothing": 0.2, "weight": WEIGHTS, "ignore_index": 3}),
        ]
    ),
    *(
        case(
            "cross_entropy_loss",
            lambda x, t, r=r, s=s: F.cross_entropy(x, t, reduction=r, label_smoothing=s),
            rand(*shape),
            probability(*shape),
            label=f"probabilities-{shape}-{r}-{s}",
        )
        for shape in [(4,), (3, 4), (2, 4, 3)]
        for r in REDUCTIONS
        for s in (0.0, 0.2)
    ),
    *(
        case(
            "cross_entropy_loss",
            lambda x, t, w, r=r: F.cross_entropy(x, t, w, reduction=r),
            rand(2, 4, 3),
            probability(2, 4, 3),
            probability(4),
            label=f"probabilities-weights-{r}",
        )
        for r in REDUCTIONS
    ),
    case(
        "cross_entropy_loss",
        lambda x, t: F.cross_entropy(x, t, reduction="sum"),
        rand(0, 4),
        probability(0, 4),
        label="probabilities-empty",
    ),
    *(
        case(
            "binary_cross_entropy",
            lambda x, t, r=r: F.binary_cross_entropy(x, t, reduction=r),
            probability(3, 4),
            probability(3, 4, seed=1),
            label=r,
        )
        for r in REDUCTIONS
    ),
    *(
        case(
            "binary_cross_entropy",
            lambda x, t, r=r: F.binary_cross_entropy(x, t, weights(x), reduction=r),
            probability(3, 4),
            probability(3, 4, seed=1),
            label=f"weights-{r}",
        )
        for r in REDUCTIONS
    ),
    case("binary_cross_entropy", F.binary_cross_entropy, probability(), probability(seed=1), label="0-d"),
    case(
        "binary_cross_entropy",
        lambda x, t: F.binary_cross_entropy(x.t(), t),
        probability(4, 3),
        probability(3, 4),
        label="transposed",
    ),
    case(
        "binary_cross_entropy",
        lambda x, t: nn.binary_cross_entropy(x, t, None, NONE),
        probability(3, 4),
        probability(4),
        label="C-level-broadcast",
        torch_agrees=False,
    ),
    case(
        "binary_cross_entropy",
        lambda x, t: nn.binary_cross_entropy(x, t, None, SUM),
        probability(0, 3),
        probability(0, 3),
        label="empty",
    ),
    *(
        case(
            "binary_cross_entropy_backward",
            lambda g, x, t, r=r: aten.binary_cross_entropy_backward(g, x, t, weights(x), r),
            rand(*(() if r else (3, 4))),
            probability(3, 4),
            probability(3, 4, seed=1),
            label=str(r),
        )
        for r in (NONE, MEAN, SUM)
    ),
    *(
        case(
            "binary_cross_entropy_with_logits",
            lambda x, t, r=r, w=w, q=q: F.binary_cross_entropy_with_logits(
                x, t, w and weights(x), reduction=r, pos_weight=q and weights(x) * 3
            ),
            rand(3, 4),
            probability(3, 4),
            label=f"{r}{'-weights' if w else ''}{'-positive' if q else ''}",
        )
        for r in REDUCTIONS
        for w in (None, True)
        for q in (None, True)
    ),
    case("binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, rand(), probability(), label="0-d"),
    case(
        "binary_cross_entropy_with_logits",
        lambda x, t: torch.binary_cross_entropy_with_logits(x, t, reduction=MEAN),
        rand(4),
        probability(3, 4),
        label="C-level-broadcast",
        torch_agrees=False,
    ),
    case(
        "binary_cross_entropy_with_logits",
        lambda x, t: torch.binary_cross_entropy_with_logits(x, t, reduction=SUM),
        rand(0, 3),
        probability(0, 3),
        label="empty",
    ),
    *(
        case(
            "kl_div",
            lambda x, t, r=r, log=log: F.kl_div(x, t, reduction=r, log_target=log),
            rand(3, 4),
            probability(3, 4),
            label=f"{r}-{log}",
        )
        for r in (*REDUCTIONS, "batchmean")
        for log in (False, True)
    ),
    *(
        case("kl_div", lambda x, t, r=r: torch.kl_div(x, t, r), rand(3, 1), probability(4), label=f"broadcast-{r}")
        for r in (NONE, MEAN, SUM)
    ),
    case("kl_div", lambda x, t: F.kl_div(x.t(), t, reduction="sum"), rand(4, 3), probability(3, 4), label="transposed"),
    case("kl_div", F.kl_div, rand(), probability(), label="0-d"),
    *(
        case(
            "poisson_nll_loss",
            lambda x, t, r=r, log=log, full=full: F.poisson_nll_loss(x, t, log_input=log, full=full, reduction=r),
            rand(3, 4, low=0.5),
            rand(3, 4, low=0.5, high=4),
            label=f"{r}{'-log' if log else ''}{'-full' if full else ''}",
        )
        for r in REDUCTIONS
        for log in (False, True)
        for full in (False, True)
    ),
    # Python-level losses have no rule: they are their parts.
    *(
        case(
            "clamp",
            lambda x, t, v, r=r: F.gaussian_nll_loss(x, t, v, full=True, reduction=r),
            rand(3, 4),
            rand(3, 4, seed=1),
            rand(3, 4, low=0.5),
            label=f"gaussian_nll_loss-{r}",
        )
        for r in REDUCTIONS
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_cross_entropy_in_which_every_target_is_ignored_sums_to_zero(device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 3, device=device), True)
    F.cross_entropy(x, torch.full((2,), -100, device=device), reduction="sum").backward()
    assert not x.grad.any()


def test_cross_entropy_of_a_masked_class_gives_it_no_gradient(device: torch.device) -> None:
    x = tracer.track(torch.tensor([[0.0, -math.inf, 0.0]], device=device), True)
    F.cross_entropy(x, torch.tensor([0], device=device)).backward()
    assert x.grad.tolist() == [[-0.5, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (torch.ones(2, 3, dtype=torch.long), {}),
        (torch.ones(2), {}),
        (torch.rand(2, 1), {}),
        (torch.tensor([0, 1]), {"label_smoothing": 1.5}),
        (torch.rand(2, 3), {"weight": torch.ones(1)}),
        (torch.tensor([0, 1]), {"weight": torch.ones(1)}),
        (torch.tensor([0, 1, 2]), {}),
    ],
    ids=[
        "integers-like-input",
        "floating-indices",
        "broadcast-probabilities",
        "smoothing",
        "weights",
        "index-weights",
        "batch",
    ],
)
def test_cross_entropy_refuses_what_torch_refuses(target: torch.Tensor, options: dict[str, Any]) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        F.cross_entropy(torch.ones(2, 3), target, **options)
    with pytest.raises((RuntimeError, ValueError)):
        F.cross_entropy(tracer.track(torch.ones(2, 3), True), target, **options)


def test_nll_loss_refuses_a_target_of_another_size() -> None:
    with pytest.raises(RuntimeError, match="Expected target size"):
        F.nll_loss(tracer.track(torch.ones(2, 3, 4), True), torch.ones(2, 5, dtype=torch.long))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, w: F.nll_loss(x, torch.tensor([0, 1], device=x.device), w),
        lambda x, w: F.cross_entropy(x, torch.tensor([0, 1], device=x.device), w),
        lambda x, w: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), w),
        lambda x, w: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), w),
        lambda x, w: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), pos_weight=w),
        lambda x, w: F.multi_margin_loss(x, torch.tensor([0, 1], device=x.device), weight=w),
    ],
    ids=["nll_loss", "cross_entropy", "binary_cross_entropy", "with_logits", "pos_weight", "multi_margin_loss"],
)
def test_weights_that_require_grad_are_refused(loss: Callable[..., torch.Tensor], device: torch.device) -> None:
    x = tracer.track(torch.ones(2, 3, device=device), True)
    with pytest.raises(UnsupportedCallError, match="weight"):
        loss(x, tracer.track(torch.ones(3, device=device), True))


def test_binary_cross_entropy_is_finite_at_certainty(device: torch.device) -> None:
    x = tracer.track(torch.tensor([0.0, 1.0], device=device), True)
    F.binary_cross_entropy(x, torch.tensor([0.0, 1.0], device=device), reduction="sum").backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_binary_cross_entropy_with_huge_logits_does_not_overflow(device: torch.device) -> None:
    x = tracer.track(torch.tensor([1e4, -1e4], device=device), True)
    F.binary_cross_entropy_with_logits(x, torch.tensor([0.0, 1.0], device=device), reduction="sum").backward()
    assert x.grad.tolist() == [1.0, -1.0]


def test_kl_div_of_a_zero_probability(device: torch.device) -> None:
    x = tracer.track(torch.tensor([-1.0, -1.0], device=device), True)
    F.kl_div(x, torch.tensor([0.0, 1.0], device=device), reduction="sum").backward()
    assert x.grad.tolist() == [0.0, -1.0]


def test_kl_div_rises_infinitely_steeply_from_a_zero_target(device: torch.device) -> None:
    t = tracer.track(torch.tensor([0.0], device=device), True)
    F.kl_div(torch.tensor([-1.0], device=device), t, reduction="sum").backward()
    assert t.grad.tolist() == [-math.inf]


def test_cross_entropy_keeps_the_log_softmax_and_no_input() -> None:
    x = tracer.track(torch.zeros(2, 3), True)
    hidden = x * 1
    loss = F.cross_entropy(hidden, torch.tensor([0, 1]))
    hidden.add_(7)
    loss.backward()
    assert x.grad[0].tolist() == pytest.approx([-1 / 3, 1 / 6, 1 / 6])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_gradient_equals_that_of_torch(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([[1.0, 2.0, -1.0]], dtype=dtype, device=device)
    target = torch.tensor([1], device=device)
    ours, theirs = tracer.track(x.clone(), True), x.clone().requires_grad_()
    (F.cross_entropy(ours, target) + F.mse_loss(ours, x.new_ones(1, 3))).backward()
    (F.cross_entropy(theirs, target) + F.mse_loss(theirs, x.new_ones(1, 3))).backward()
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("tracked", [0, 1], ids=["input", "target"])
@pytest.mark.parametrize("shapes", [((4, 1), (1, 4)), ((4, 4), (4, 1)), ((1, 4), (4, 4)), ((3, 4), (1, 1, 4))], ids=str)
def test_binary_cross_entropy_is_refused_where_torch_does_not_broadcast(
    shapes: tuple[tuple[int, ...], ...], tracked: int, device: torch.device
) -> None:
    pair = [rand(*shape, low=0.1, high=0.9, seed=i)(device) for i, shape in enumerate(shapes)]
    pair[tracked] = tracer.track(pair[tracked], True)
    with pytest.raises(UnsupportedCallError, match="does not broadcast"):
        torch.ops.aten.binary_cross_entropy(*pair).backward()


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1,), ()], ids=str)
def test_binary_cross_entropy_broadcasts_a_target_over_the_first_dimensions(
    shape: tuple[int, ...], device: torch.device
) -> None:
    target = rand(*shape, low=0.1, high=0.9, seed=1)
    run_case(
        case(
            "binary_cross_entropy",
            torch.ops.aten.binary_cross_entropy,
            rand(3, 4, low=0.1, high=0.9),
            target,
            torch_agrees=False,
            second="differences",
        ),
        device,
    )
