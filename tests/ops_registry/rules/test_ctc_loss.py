"""Rules of ``ops_registry/rules/ctc_loss.py``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, check_under_autocast, cotangents, derivatives, plain, rand, run_case

import tracer

INF = math.inf

#: Repeated labels, a short target and an empty one.
PADDED = [[1, 1, 2], [3, 2, 0], [2, 2, 3]]
JOINED = [1, 1, 2, 3, 2]
LABELS = [3, 2, 0]


def ctc(
    targets: list[Any] = PADDED,
    frames: Any = (6, 5, 4),
    labels: Any = LABELS,
    normalise: bool = True,
    **options: Any,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The loss of logits, or of scores that are taken for log probabilities as they are."""

    def function(x: torch.Tensor) -> torch.Tensor:
        scores = x.log_softmax(-1) if normalise else x
        return F.ctc_loss(scores, torch.tensor(targets, device=x.device), frames, labels, **options)

    return function


def fused(x: torch.Tensor) -> torch.Tensor:
    return torch._ctc_loss(x, torch.tensor(PADDED, device=x.device), [6, 5, 4], LABELS)[0]


SCORES = rand(6, 3, 4)

# torch has no second derivative: differences decide.
CASES = [
    *(
        case(
            "ctc_loss",
            ctc(targets, frames, labels, reduction=reduction, zero_infinity=zero_infinity),
            SCORES,
            label=f"{reduction}-{'joined' if targets is JOINED else 'padded'}-{type(frames).__name__}-{zero_infinity}",
            second="differences",
        )
        for reduction, targets, (frames, labels), zero_infinity in itertools.product(
            ("none", "mean", "sum"),
            (PADDED, JOINED),
            (((6, 5, 4), LABELS), (torch.tensor([6, 5, 4]), torch.tensor(LABELS))),
            (False, True),
        )
    ),
    case("ctc_loss", ctc([1, 2, 1], (6,), (3,)), rand(6, 4), label="one-sequence", second="differences"),
    case(
        "ctc_loss",
        ctc([1, 2], torch.tensor(5), torch.tensor(2), reduction="none"),
        rand(6, 4),
        label="one-sequence-tensors",
        second="differences",
    ),
    case(
        "ctc_loss", ctc([[0, 1], [1, 2]], (4, 4), (2, 1), blank=3), rand(4, 2, 4), label="blank", second="differences"
    ),
    case("ctc_loss", ctc([[], []], (4, 3), (0, 0)), rand(4, 2, 3), label="no-labels", second="differences"),
    case(
        "ctc_loss",
        ctc([[1, 2], [1, 2]], (1, 4), (2, 2), zero_infinity=True, reduction="none"),
        rand(4, 2, 3),
        label="too-short",
        second="differences",
    ),
    case("ctc_loss", ctc([[1]], (1,), (1,)), rand(1, 1, 2), label="one-frame", second="differences"),
    case(
        "ctc_loss",
        lambda x: ctc([[1], [2]], (4, 4), (1, 1))(x.permute(2, 0, 1)),
        rand(2, 3, 4),
        label="not-contiguous",
        second="differences",
    ),
    case("ctc_loss", lambda x: ctc()(x.expand(6, 3, 4)), rand(1, 1, 4), label="expanded", second="differences"),
    # torch's gradient is that of normalised frames, whatever the frames are: differences decide.
    case("_ctc_loss", fused, SCORES, second="differences", torch_agrees=False),
    case("_ctc_loss", ctc(normalise=False), SCORES, second="differences", torch_agrees=False, label="not-normalised"),
]


@pytest.mark.filterwarnings("ignore:.*empty tensor")
@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_gradient_by_log_probabilities_is_torchs(device: torch.device) -> None:
    data = SCORES(device).log_softmax(-1)
    found = [
        derivatives(ctc(normalise=False), [leaf], (0,), False)[1][0]
        for leaf in (tracer.track(data.clone(), True), data.clone().requires_grad_())
    ]
    torch.testing.assert_close(*found)


def test_gradient_by_log_probabilities_sums_to_zero_in_each_frame(device: torch.device) -> None:
    x = tracer.track(SCORES(device).log_softmax(-1), True)
    ctc(normalise=False)(x).backward()
    torch.testing.assert_close(plain(x.grad).sum(-1), torch.zeros(6, 3, dtype=torch.float64, device=device))


def test_gradient_by_scores_that_are_not_normalised_is_minus_the_occupancy(device: torch.device) -> None:
    x = tracer.track(SCORES(device), True)
    ctc(normalise=False, reduction="sum")(x).backward()
    expected = torch.tensor([[-1.0, -1.0, -1.0]] * 4 + [[-1.0, -1.0, 0.0], [-1.0, 0.0, 0.0]], device=device)
    torch.testing.assert_close(plain(x.grad).sum(-1), expected.double())


@pytest.mark.parametrize("normalise", [True, False])
def test_recorded_gradient_is_that_of_the_kernel(normalise: bool, device: torch.device) -> None:
    function = ctc(frames=(6, 5, 2), normalise=normalise, zero_infinity=True)
    leaf = tracer.track(SCORES(device), True)
    kernel = derivatives(function, [leaf], (0,), False)[1][0]
    recorded = derivatives(function, [leaf], (0,), True)[1][0]
    torch.testing.assert_close(recorded, kernel)


@pytest.mark.parametrize("create_graph", [False, True])
def test_frames_after_the_end_get_no_gradient(create_graph: bool, device: torch.device) -> None:
    x = tracer.track(SCORES(device), True)
    (grad,) = torch.autograd.grad(ctc(frames=(6, 5, 4))(x), x, create_graph=create_graph)
    assert plain(grad)[4:, 2].eq(0).all() and plain(grad)[5, 1].eq(0).all() and plain(grad)[:4].ne(0).all()


@pytest.mark.parametrize("create_graph", [False, True])
def test_target_that_does_not_fit_has_no_gradient(create_graph: bool, device: torch.device) -> None:
    """Three equal labels take five frames: the loss is infinite, and so says its gradient."""
    x = tracer.track(rand(4, 1, 3)(device), True)
    loss = ctc([[1, 1, 1]], (4,), (3,))(x)
    (grad,) = torch.autograd.grad(loss, x, create_graph=create_graph)
    assert loss.item() == INF
    assert plain(grad).isnan().all()


@pytest.mark.parametrize("create_graph", [False, True])
def test_target_that_does_not_fit_is_left_out_with_zero_infinity(create_graph: bool, device: torch.device) -> None:
    x = tracer.track(rand(4, 2, 3)(device), True)
    loss = ctc([[1, 1, 1], [1, 2, 1]], (4, 4), (3, 3), zero_infinity=True, reduction="sum")(x)
    (grad,) = torch.autograd.grad(loss, x, create_graph=create_graph)
    assert plain(grad)[:, 0].eq(0).all() and plain(grad)[:, 1].ne(0).all()


@pytest.mark.parametrize("create_graph", [False, True])
def test_masked_class_gets_no_gradient_and_disturbs_no_other(create_graph: bool, device: torch.device) -> None:
    """torch 2.13 answers nan for a class of probability 0 that the target does not even name."""
    data = rand(5, 1, 3)(device)
    masked = tracer.track(F.pad(data, (0, 1), value=-INF), True)
    without = tracer.track(data, True)
    grads = [
        plain(torch.autograd.grad(ctc([[1, 2]], (5,), (2,))(x), x, create_graph=create_graph)[0])
        for x in (masked, without)
    ]
    torch.testing.assert_close(grads[0][..., :3], grads[1])
    assert grads[0][..., 3].eq(0).all()


@pytest.mark.parametrize("create_graph", [False, True])
def test_forbidden_label_in_one_frame_leaves_the_other_paths(create_graph: bool, device: torch.device) -> None:
    data = rand(4, 1, 3)(device)
    data[1, 0, 1] = -INF
    x = tracer.track(data, True)
    loss = ctc([[1, 2]], (4,), (2,))(x)
    (grad,) = torch.autograd.grad(loss, x, create_graph=create_graph)
    assert plain(grad).isfinite().all() and plain(grad)[1, 0, 1] == 0


def test_second_derivative_is_finite_beside_a_masked_class(device: torch.device) -> None:
    x = tracer.track(F.pad(rand(5, 1, 3)(device), (0, 1), value=-INF), True)
    (grad,) = torch.autograd.grad(ctc([[1, 2]], (5,), (2,))(x), x, create_graph=True)
    (second,) = torch.autograd.grad(grad[..., :3], x, cotangents([grad[..., :3]])[0])
    assert plain(second).isfinite().all()


def test_one_frame_and_one_label_is_the_negative_log_likelihood(device: torch.device) -> None:
    x = tracer.track(rand(1, 1, 3)(device), True)
    ctc([[2]], (1,), (1,))(x).backward()
    expected = plain(x).softmax(-1) - torch.tensor([0.0, 0.0, 1.0], device=device)
    torch.testing.assert_close(plain(x.grad), expected)


def test_by_product_is_a_constant_as_in_torch(device: torch.device) -> None:
    x = tracer.track(SCORES(device), True)
    loss, log_alpha = torch._ctc_loss(x, torch.tensor(PADDED, device=device), [6, 5, 4], LABELS)
    assert loss.requires_grad and not log_alpha.requires_grad


@pytest.mark.parametrize("overload", ["IntList", "Tensor"])
def test_every_overload_is_intercepted(overload: str, device: torch.device) -> None:
    x = tracer.track(SCORES(device), True)
    lengths = ([6, 5, 4], LABELS) if overload == "IntList" else (torch.tensor([6, 5, 4]), torch.tensor(LABELS))
    packet = torch.ops.aten.ctc_loss
    getattr(packet, overload)(x.log_softmax(-1), torch.tensor(PADDED, device=device), *lengths).backward()
    other = tracer.track(SCORES(device), True)
    ctc()(other).backward()
    torch.testing.assert_close(plain(x.grad), plain(other.grad))


def test_module_takes_32_bit_targets(device: torch.device) -> None:
    x = tracer.track(SCORES(device), True)
    torch.nn.CTCLoss()(
        x.log_softmax(-1), torch.tensor(PADDED, dtype=torch.int32, device=device), (6, 5, 4), LABELS
    ).backward()
    other = tracer.track(SCORES(device), True)
    ctc()(other).backward()
    torch.testing.assert_close(plain(x.grad), plain(other.grad))


def test_loss_of_half_precision_is_computed_in_float32_under_autocast(device: torch.device) -> None:
    check_under_autocast(ctc(), [rand(6, 3, 4, dtype=torch.bfloat16)], device)
