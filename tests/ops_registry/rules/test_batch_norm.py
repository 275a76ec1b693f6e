"""Rules of ``ops_registry/rules/batch_norm.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, check_differences, cotangents, plain, rand, run_case

import ops_registry
import tracer

aten = torch.ops.aten
EPS = 1e-3


def running(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh running statistics for three channels, with no history."""
    return rand(3)(x.device), rand(3, low=0.5, high=2.0)(x.device)


def normed(function: Callable[..., Any], training: bool, keep: bool = True) -> Callable[..., Any]:
    """A batch norm with running statistics of its own, which each call writes anew."""
    return lambda x, w=None, b=None: function(x, w, b, *(running(x) if keep else (None, None)), training, 0.1, EPS)


def batch_norm(
    x: torch.Tensor, w: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> torch.Tensor:
    return torch.batch_norm(x, w, b, mean, var, training, momentum, eps, True)


def instance_norm(
    x: torch.Tensor, w: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> torch.Tensor:
    return torch.instance_norm(x, w, b, mean, var, training, momentum, eps, True)


def first(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    return lambda *args: function(*args)[0]


def kernel(name: str, training: bool, mask: list[bool]) -> Callable[..., list[torch.Tensor]]:
    """A backward kernel as a function of its tensors, given statistics that are differentiable functions of ``x``."""

    def call(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        mean = x.mean([0, 2])
        invstd = ((x - mean[:, None]).square().mean([0, 2]) + EPS).rsqrt()
        kept = running(x)
        if name == "native_batch_norm_backward":
            results = aten.native_batch_norm_backward(g, x, w, *kept, mean, invstd, training, EPS, mask)
        else:
            reserve = torch.empty(0, dtype=torch.uint8, device=x.device)
            results = aten._batch_norm_impl_index_backward(
                0, x, g, w, *kept, mean, invstd, training, EPS, mask, reserve
            )
        return [r for r, wanted in zip(results, mask, strict=True) if wanted]

    return call


X, W, B = rand(4, 3, 2), rand(3), rand(3, seed=1)

# torch raises in the second derivative of a norm that has a bias and no weight: differences decide ("bias-alone").
CASES = [
    case("batch_norm", normed(batch_norm, True), X, W, B),
    case("batch_norm", normed(batch_norm, False), X, W, B, label="evaluation"),
    case("batch_norm", normed(batch_norm, True), X, label="plain"),
    case("batch_norm", normed(batch_norm, False), X, label="plain-evaluation"),
    case("batch_norm", normed(batch_norm, True, keep=False), X, W, B, label="no-running-statistics"),
    case("batch_norm", normed(batch_norm, True), rand(5, 3), W, B, label="rank-2"),
    case("batch_norm", normed(batch_norm, True), rand(2, 3, 2, 1, 3), W, B, label="rank-5"),
    case("batch_norm", normed(batch_norm, False), rand(0, 3, 2), W, B, label="empty"),
    case("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), rand(0), label="empty-vector"),
    case(
        "batch_norm",
        lambda x, b: F.batch_norm(x, *running(x), bias=b),
        X,
        B,
        torch_agrees=False,
        second="differences",
        label="bias-alone",
    ),
    case(
        "batch_norm",
        lambda x, w: F.batch_norm(x.transpose(0, 1), *running(x), w, training=True),
        rand(3, 4, 2),
        W,
        label="transposed",
    ),
    case(
        "batch_norm",
        lambda x, w: F.batch_norm(x.contiguous(memory_format=torch.channels_last), None, None, w, training=True),
        rand(2, 3, 4, 5),
        W,
        label="channels-last",
    ),
    case("instance_norm", normed(instance_norm, True), X, W, B),
    case("instance_norm", normed(instance_norm, False), X, W, B, label="evaluation"),
    case("instance_norm", lambda x: F.instance_norm(x), rand(2, 3, 2, 3), label="plain"),
    case("native_batch_norm", first(normed(torch.native_batch_norm, True)), X, W, B),
    case("native_batch_norm", first(normed(torch.native_batch_norm, False)), X, W, B, label="evaluation"),
    case("_native_batch_norm_legit", first(normed(aten._native_batch_norm_legit, True)), X, W, B),
    case(
        "_native_batch_norm_legit.no_stats",
        lambda x, w, b: aten._native_batch_norm_legit(x, w, b, True, 0.1, EPS)[0],
        X,
        W,
        B,
    ),
    case(
        "_batch_norm_with_update",
        lambda x, w, b: aten._batch_norm_with_update(x, w, b, *running(x), 0.1, EPS)[0],
        X,
        W,
        B,
    ),
    # torch's own second derivatives of these kernels take mean and invstd for constants: central differences decide.
    *(
        case(
            name,
            kernel(name, training, mask),
            X,
            rand(4, 3, 2, seed=1),
            W,
            torch_agrees=False,
            second="differences",
            label=f"{training}-{mask}",
        )
        for name in ("native_batch_norm_backward", "_batch_norm_impl_index_backward")
        for training, mask in [
            (True, [True, True, True]),
            (True, [True, False, False]),
            (True, [False, True, False]),
            (False, [True, True, True]),
            (False, [False, False, True]),
        ]
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("training", [True, False])
def test_third_derivatives_equal_differences_of_the_second(training: bool, device: torch.device) -> None:
    norm = normed(batch_norm, training)

    def second(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = (t if isinstance(t, tracer.Tensor) else tracer.track(t, True) for t in (x, w))
        out = norm(x, w).sin()
        first = torch.autograd.grad(out, (x, w), cotangents([out]), create_graph=True)
        return torch.autograd.grad(first, (x, w), cotangents(list(first), 5), create_graph=True)

    data = [X(device), W(device)]
    leaves = [tracer.track(d.clone(), True) for d in data]
    found = second(*leaves)
    third = torch.autograd.grad(found, leaves, cotangents(list(found)))
    check_differences(lambda *moved: [plain(t) for t in second(*moved)], data, (0, 1), [plain(t) for t in third])


@pytest.mark.parametrize("function", [batch_norm, instance_norm], ids=lambda f: f.__name__)
def test_running_statistics_are_written_once_and_stay_plain(function: Callable[..., Any], device: torch.device) -> None:
    x = X(device)
    mine, theirs = running(x), running(x)
    out = function(tracer.track(x, True), None, None, *mine, True, 0.1, EPS)
    function(x, None, None, *theirs, True, 0.1, EPS)
    out.sum().backward()
    for ours, expected in zip(mine, theirs, strict=True):
        assert type(ours) is torch.Tensor
        assert torch.equal(ours, expected)


def test_a_module_in_training_equals_torch_over_two_steps(device: torch.device) -> None:
    results = []
    for track in (True, False):
        module = torch.nn.BatchNorm1d(3, momentum=None, dtype=torch.float64, device=device)
        x = X(device)
        x = tracer.track(x, True) if track else x.requires_grad_()
        (module(x).square().sum() + module(x * 2).sin().sum()).backward()
        results.append([plain(x.grad), module.running_mean, module.running_var, module.num_batches_tracked])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_in_low_precision_equal_torch_bit_for_bit(dtype: torch.dtype, device: torch.device) -> None:
    x, w = rand(4, 3, 5, dtype=dtype)(device), rand(3, dtype=dtype)(device)
    gradients = []
    for leaves in (
        [tracer.track(x.clone(), True), tracer.track(w.clone(), True)],
        [x.clone().requires_grad_(), w.clone().requires_grad_()],
    ):
        out = F.batch_norm(leaves[0], None, None, leaves[1], training=True)
        out.backward(cotangents([out])[0])
        gradients.append([plain(t.grad) for t in leaves])
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.dtype == dtype
        assert torch.equal(mine, theirs)


def test_evaluation_without_running_statistics_raises_what_torch_raises(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="running_mean must be defined in evaluation mode"):
        batch_norm(tracer.track(X(device), True), None, None, None, None, False, 0.1, EPS)


def test_the_gradient_of_native_batch_norm_of_nothing_is_refused(device: torch.device) -> None:
    out = normed(torch.native_batch_norm, False)(tracer.track(rand(0, 3)(device), True))[0]
    with pytest.raises(ops_registry.UnsupportedCallError, match="empty"):
        out.sum().backward()


def test_two_numbers_a_channel_and_the_input_are_kept_in_training(device: torch.device) -> None:
    x = tracer.track(rand(8, 3, 5)(device), True)
    kept = [k for k in normed(batch_norm, True)(x).grad_fn.saved if isinstance(k, torch.Tensor)]
    assert sorted(k.numel() for k in kept) == [0, 3, 3, 120]
