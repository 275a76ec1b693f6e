"""Rules of ``ops_registry/rules/normalisation.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, check_differences, cotangents, plain, rand, run_case, values

import tracer

aten = torch.ops.aten
EPS = 1e-3


def statistics(x: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and 1 / sqrt(variance + EPS), as differentiable functions of ``x``."""
    mean = x.mean(dims, keepdim=True)
    return mean, ((x - mean).square().mean(dims, keepdim=True) + EPS).rsqrt()


def layer_kernel(mask: list[bool]) -> Callable[..., list[torch.Tensor]]:
    def call(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        results = aten.native_layer_norm_backward(g, x, [4, 3], *statistics(x, [1, 2]), w, w, mask)
        return [r for r, wanted in zip(results, mask, strict=True) if wanted]

    return call


def group_kernel(mask: list[bool]) -> Callable[..., list[torch.Tensor]]:
    def call(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        mean, rstd = (t.reshape(2, 2) for t in statistics(x.reshape(2, 2, 9), [2]))
        results = aten.native_group_norm_backward(g, x, mean, rstd, w, 2, 6, 3, 2, mask)
        return [r for r, wanted in zip(results, mask, strict=True) if wanted]

    return call


MASKS = [[True, True, True], [True, False, False], [False, True, False], [False, False, True]]

# torch raises in the second derivative of a norm that has a bias and no weight: differences decide ("bias-alone").
CASES = [
    case("layer_norm", lambda x, w, b: torch.layer_norm(x, (4, 3), w, b), rand(2, 4, 3), rand(4, 3), rand(4, 3)),
    case("layer_norm", lambda x: F.layer_norm(x, (3,), eps=0.1), rand(2, 4, 3), label="plain"),
    case(
        "layer_norm",
        lambda x, b: F.layer_norm(x, (3,), bias=b),
        rand(2, 4, 3),
        rand(3),
        torch_agrees=False,
        second="differences",
        label="bias-alone",
    ),
    case("layer_norm", lambda x, w: F.layer_norm(x, (3,), w), rand(2, 4, 3), rand(3), label="weight-alone"),
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (3,), w, b), rand(0, 3), rand(3), rand(3), label="empty"),
    case(
        "layer_norm",
        lambda x, w: F.layer_norm(x.expand(2, 4, 3).transpose(0, 2), (2,), w),
        rand(4, 3),
        rand(2),
        label="expanded-transposed",
    ),
    case("layer_norm", lambda x, w: F.layer_norm(x, (2, 3), w), rand(2, 2, 1, 2, 3), rand(2, 3), label="rank-5"),
    case(
        "native_layer_norm",
        lambda x, w, b: torch.native_layer_norm(x, [3], w, b, EPS)[0],
        rand(4, 3),
        rand(3),
        rand(3),
    ),
    case("group_norm", lambda x, w, b: torch.group_norm(x, 2, w, b), rand(2, 6, 3), rand(6), rand(6)),
    case("group_norm", lambda x: F.group_norm(x, 3), rand(2, 6, 2, 3), label="plain"),
    case(
        "group_norm",
        lambda x, b: F.group_norm(x, 3, bias=b),
        rand(2, 6, 2),
        rand(6),
        torch_agrees=False,
        second="differences",
        label="bias-alone",
    ),
    case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), rand(0, 6, 3), rand(6), rand(6), label="empty"),
    case(
        "group_norm",
        lambda x, w: F.group_norm(x.contiguous(memory_format=torch.channels_last), 2, w),
        rand(2, 4, 3, 5),
        rand(4),
        needs=((0,), (0, 1)),  # torch itself crashes when the weight alone wants a gradient
        label="channels-last",
    ),
    case("group_norm", lambda x, w: F.group_norm(x.transpose(1, 2), 1, w), rand(2, 3, 4), rand(4), label="transposed"),
    case("group_norm", lambda x, w: F.group_norm(x, 2, w), rand(2, 4, 2, 1, 3), rand(4), label="rank-5"),
    case(
        "native_group_norm",
        lambda x, w, b: torch.native_group_norm(x, w, b, 2, 6, 3, 2, EPS),
        rand(2, 6, 3),
        rand(6),
        rand(6),
    ),
    case("rms_norm", lambda x, w: torch.rms_norm(x, (4, 3), w, 0.1), rand(2, 4, 3), rand(4, 3)),
    case("_fused_rms_norm", lambda x, w: torch._fused_rms_norm(x, (4, 3), w, 0.1)[0], rand(2, 4, 3), rand(4, 3)),
    case(
        "_fused_rms_norm",
        lambda x: torch._fused_rms_norm(x, (3,), None, None),
        rand(2, 4, 3),
        label="both-results",
    ),
    case("rms_norm", lambda x: F.rms_norm(x, (3,)), rand(2, 4, 3), label="plain"),
    case("rms_norm", lambda x, w: F.rms_norm(x, (3,), w), rand(0, 3), rand(3), label="empty"),
    case(
        "rms_norm",
        lambda x, w: F.rms_norm(x, (3,), w, 0.1),
        rand(2, 3, dtype=torch.complex128),
        rand(3, dtype=torch.complex128),
        label="complex",
    ),
    # torch's own second derivatives of these kernels take mean and rstd for constants: central differences decide.
    *(
        case(
            "native_layer_norm_backward",
            layer_kernel(mask),
            rand(2, 4, 3),
            rand(2, 4, 3, seed=1),
            rand(4, 3),
            torch_agrees=False,
            second="differences",
            label=f"{mask}",
        )
        for mask in MASKS
    ),
    *(
        case(
            "native_group_norm_backward",
            group_kernel(mask),
            rand(2, 6, 3),
            rand(2, 6, 3, seed=1),
            rand(6),
            torch_agrees=False,
            second="differences",
            label=f"{mask}",
        )
        for mask in MASKS
    ),
    # Python-level.
    case("layer_norm", lambda x: F.normalize(x, dim=1), rand(3, 4), label="normalize"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


NORMS = {
    "layer": lambda x, w: F.layer_norm(x, (3,), w, w),
    "group": lambda x, w: F.group_norm(x.transpose(1, 2), 3, w, w),
    "rms": lambda x, w: F.rms_norm(x, (3,), w),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_third_derivatives_equal_differences_of_the_second(norm: Callable[..., Any], device: torch.device) -> None:
    def second(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = (t if isinstance(t, tracer.Tensor) else tracer.track(t, True) for t in (x, w))
        out = norm(x, w)
        first = torch.autograd.grad(out, (x, w), cotangents([out]), create_graph=True)
        return torch.autograd.grad(first, (x, w), cotangents(list(first), 5), create_graph=True)

    data = [rand(2, 4, 3)(device), rand(3)(device)]
    leaves = [tracer.track(d.clone(), True) for d in data]
    found = second(*leaves)
    third = torch.autograd.grad(found, leaves, cotangents(list(found)))
    check_differences(lambda *moved: [plain(t) for t in second(*moved)], data, (0, 1), [plain(t) for t in third])


@pytest.mark.parametrize(
    "norm",
    [
        lambda x, b: F.layer_norm(x, (3,), None, b),
        lambda x, b: F.group_norm(x, 3, None, b),
        lambda x, b: F.batch_norm(x, None, None, None, b, training=True),
    ],
    ids=["layer", "group", "batch"],
)
def test_a_bias_without_a_weight_has_a_second_derivative(norm: Callable[..., Any], device: torch.device) -> None:
    x, b = (tracer.track(make(device), True) for make in (rand(4, 3), rand(3, seed=1)))
    (grad_bias,) = torch.autograd.grad((norm(x, b) ** 2).sum(), b, create_graph=True)
    (second,) = torch.autograd.grad(grad_bias.sum(), b)
    assert second.tolist() == pytest.approx([8.0, 8.0, 8.0])  # of 4 rows, 2 each


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_gradients_in_low_precision_have_the_dtype_and_values_of_torch(
    norm: Callable[..., Any], dtype: torch.dtype, device: torch.device
) -> None:
    x, w = rand(4, 5, 3, dtype=dtype)(device), rand(3, dtype=dtype)(device)
    gradients = []
    for leaves in (
        [tracer.track(x.clone(), True), tracer.track(w.clone(), True)],
        [x.clone().requires_grad_(), w.clone().requires_grad_()],
    ):
        out = norm(*leaves)
        out.backward(cotangents([out])[0])
        gradients.append([plain(t.grad) for t in leaves])
    close = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close)


def test_a_weight_of_higher_precision_than_the_input_keeps_its_dtype(device: torch.device) -> None:
    x = tracer.track(rand(4, 3, dtype=torch.bfloat16)(device), True)
    w = tracer.track(rand(3, dtype=torch.float32)(device), True)
    F.layer_norm(x, (3,), w).sum().backward()
    assert x.grad.dtype == torch.bfloat16 and w.grad.dtype == torch.float32


def test_group_norm_keeps_channels_last_as_torch_does(device: torch.device) -> None:
    x = rand(2, 4, 3, 5)(device).contiguous(memory_format=torch.channels_last)
    assert F.group_norm(tracer.track(x, True), 2).stride() == F.group_norm(x, 2).stride()


def test_the_weight_alone_gets_its_gradient_on_channels_last(device: torch.device) -> None:
    x, found = rand(2, 4, 3, 5)(device), []
    for layout in (torch.channels_last, torch.contiguous_format):
        w = tracer.track(rand(4)(device), True)
        F.group_norm(x.contiguous(memory_format=layout), 2, w).square().sum().backward()
        found.append(plain(w.grad))
    torch.testing.assert_close(*found)


def test_a_normalised_sum_has_no_gradient(device: torch.device) -> None:
    x = tracer.track(values([[1.0, 2.0, 4.0]])(device), True)
    F.layer_norm(x, (3,)).sum().backward()
    torch.testing.assert_close(plain(x.grad), torch.zeros(1, 3, dtype=torch.float64, device=device))


def test_two_numbers_a_row_and_the_input_are_kept(device: torch.device) -> None:
    x = tracer.track(rand(8, 32)(device), True)
    kept = [k for k in F.layer_norm(x, (32,)).grad_fn.saved if isinstance(k, torch.Tensor)]
    assert sorted(k.numel() for k in kept) == [8, 8, 256]


def test_group_norm_of_channels_that_do_not_divide_raises_what_torch_raises(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="divisible by num_groups"):
        torch.group_norm(tracer.track(rand(2, 5, 3)(device), True), 2)


def test_the_statistics_that_native_norms_return_are_constants(device: torch.device) -> None:
    x = tracer.track(rand(4, 3)(device), True)
    out, mean, rstd = torch.native_layer_norm(x, [3], None, None, EPS)
    assert out.requires_grad and not mean.requires_grad and not rstd.requires_grad
