"""Rules of ``ops_registry/rules/losses.py``."""

from __future__ import annotations

from collections.abc import Callable

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


DIFFERENCE = [
    ("mse_loss", "", F.mse_loss),
    ("l1_loss", "", F.l1_loss),
    ("smooth_l1_loss", "", F.smooth_l1_loss),
    ("smooth_l1_loss", "beta", lambda x, t, reduction: F.smooth_l1_loss(x, t, reduction, beta=0.4)),
    ("smooth_l1_loss", "beta-0", lambda x, t, reduction: F.smooth_l1_loss(x, t, reduction, beta=0.0)),
    ("huber_loss", "", F.huber_loss),
    ("huber_loss", "delta", lambda x, t, reduction: F.huber_loss(x, t, reduction, delta=0.4)),
]

#: The C functions, whose reduction is a number.
C_DIFFERENCE = [
    ("mse_loss", lambda x, t, reduction=MEAN: nn.mse_loss(x, t, reduction)),
    ("l1_loss", lambda x, t, reduction=MEAN: nn.l1_loss(x, t, reduction)),
    ("smooth_l1_loss", lambda x, t, reduction=MEAN: nn.smooth_l1_loss(x, t, reduction)),
    ("huber_loss", lambda x, t, reduction=MEAN: nn.huber_loss(x, t, reduction)),
]

CASES = [
    *(
        case(name, lambda x, t, f=f, r=r: f(x, t, reduction=r), rand(3, 4), rand(3, 4, seed=1), label=f"{r}-{label}")
        for name, label, f in DIFFERENCE
        for r in REDUCTIONS
    ),
    *(case(name, f, rand(3, 4), rand(3, 4, seed=1), label="C-level") for name, f in C_DIFFERENCE),
    *(
        case(
            name,
            lambda x, t, f=f, r=r: f(x, t, r),
            rand(3, 1),
            rand(4),
            label=f"C-level-broadcast-{r}",
            torch_agrees=False,
            second="differences",
        )
        for name, f in C_DIFFERENCE
        for r in (NONE, MEAN, SUM)
    ),
    *(case(name, f, rand(), rand(seed=1), label="0-d") for name, f in C_DIFFERENCE),
    *(
        case(name, lambda x, t, f=f: f(x, t, SUM), rand(0, 3), rand(0, 3), label="empty-sum")
        for name, f in C_DIFFERENCE
    ),
    *(
        case(name, lambda x, t, f=f: f(x, t, MEAN), rand(0, 3), rand(0, 3), label="empty-mean", differences=False)
        for name, f in C_DIFFERENCE
    ),
    *(
        case(name, lambda x, t, f=f: f(x.t(), t), rand(4, 3), rand(3, 4), label="transposed")
        for name, f in C_DIFFERENCE
    ),
    *(case(name, f, rand(1, 2, 1, 3, 2), rand(1, 2, 1, 3, 2, seed=1), label="rank-5") for name, f in C_DIFFERENCE),
    case(
        "l1_loss", F.l1_loss, rand(3, dtype=torch.complex128), rand(3, dtype=torch.complex128, seed=1), label="complex"
    ),
    *(
        case(
            name,
            lambda g, x, t, f=f, r=r: f(g, x, t, r),
            rand(*(() if r else (3, 4))),
            rand(3, 4),
            rand(3, 4, seed=1),
            label=str(r),
        )
        for name, f in [
            ("mse_loss_backward", aten.mse_loss_backward),
            ("smooth_l1_loss_backward", lambda g, x, t, r: aten.smooth_l1_loss_backward(g, x, t, r, 0.9)),
            ("huber_loss_backward", lambda g, x, t, r: aten.huber_loss_backward(g, x, t, r, 0.9)),
        ]
        for r in (NONE, MEAN, SUM)
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("function", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss], ids=lambda f: f.__name__)
def test_two_dtypes_give_each_input_a_gradient_of_its_own(
    function: Callable[..., torch.Tensor], device: torch.device
) -> None:
    # pytorch/pytorch#94086, pytorch/pytorch#192027
    x = tracer.track(torch.tensor([2.0], dtype=torch.float32, device=device), True)
    t = tracer.track(torch.tensor([2.5], dtype=f64, device=device), True)
    function(x, t).backward()
    slope = {"mse_loss": 1.0, "l1_loss": 1.0}.get(function.__name__, 0.5)
    assert (x.grad.dtype, t.grad.dtype) == (torch.float32, f64)
    assert (x.grad.tolist(), t.grad.tolist()) == ([-slope], [slope])


def test_broadcast_mean_counts_every_term(device: torch.device) -> None:
    x = tracer.track(torch.zeros(3, 1, dtype=f64, device=device), True)
    nn.mse_loss(x, torch.ones(4, dtype=f64, device=device), MEAN).backward()
    assert x.grad.flatten().tolist() == pytest.approx([-2 / 3] * 3)


@pytest.mark.parametrize("function", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss], ids=lambda f: f.__name__)
def test_equal_input_and_target_have_gradient_zero(function: Callable[..., torch.Tensor], device: torch.device) -> None:
    x = tracer.track(torch.ones(2, device=device), True)
    function(x, torch.ones(2, device=device)).backward()
    assert x.grad.tolist() == [0.0, 0.0]
