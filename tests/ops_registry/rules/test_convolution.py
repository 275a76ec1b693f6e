"""Rules of ``ops_registry/rules/convolution.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, check_under_autocast, cotangents, plain, rand, run_case, values

import tracer

C128 = torch.complex128
aten = torch.ops.aten


def from_expanded(function):
    """``function`` of an expanded and a transposed input."""
    return lambda x, w: function(x.expand(2, 3, 6, 5).transpose(-1, -2), w)


def kernel(mask, transposed=False, groups=1, stride=2, padding=1, dilation=2):
    """The backward kernel as a function of its three tensors."""
    geometry = [stride] * 2, [padding] * 2, [dilation] * 2, transposed, [0, 0], groups

    def call(g, x, w):
        bias_sizes = [g.shape[1]] if mask[2] else None
        results = aten.convolution_backward(g, x, w, bias_sizes, *geometry, mask)
        return [r for r, wanted in zip(results, mask, strict=True) if wanted]

    return call


CASES = [
    case("conv1d", torch.conv1d, rand(2, 3, 7), rand(4, 3, 3), rand(4)),
    case("conv1d", torch.conv1d, rand(3, 7), rand(4, 3, 3), rand(4), label="unbatched"),
    case("conv1d", lambda x, w: torch.conv1d(x, w, padding="same"), rand(2, 3, 7), rand(4, 3, 4), label="same-even"),
    case("conv2d", torch.conv2d, rand(2, 3, 5, 6), rand(4, 3, 3, 2), rand(4)),
    case(
        "conv2d",
        lambda x, w, b: torch.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        rand(2, 4, 6, 7),
        rand(6, 2, 3, 2),
        rand(6),
        label="keywords",
    ),
    case(
        "conv2d",
        lambda x, w, b: torch.conv2d(x, w, b, 2, 1),
        rand(4, 6, 7),
        rand(2, 4, 3, 2),
        rand(2),
        label="unbatched",
    ),
    case("conv2d", lambda x, w: torch.conv2d(x, w, groups=3), rand(2, 3, 4, 4), rand(6, 1, 3, 3), label="depthwise"),
    case(
        "conv2d",
        lambda x, w, b: torch.conv2d(x, w, b, padding="same", dilation=(1, 3)),
        rand(2, 3, 5, 6),
        rand(4, 3, 4, 2),
        rand(4),
        label="same-odd-total",
    ),
    case(
        "conv2d",
        lambda x, w: torch.conv2d(x, w, padding="same"),
        rand(3, 5, 6),
        rand(4, 3, 3, 4),
        label="same-unbatched",
    ),
    case("conv2d", lambda x, w: torch.conv2d(x, w, padding="valid"), rand(2, 3, 5, 6), rand(4, 3, 3, 2), label="valid"),
    case("conv2d", torch.conv2d, rand(0, 3, 5, 6), rand(4, 3, 3, 2), rand(4), label="empty-batch"),
    case("conv2d", from_expanded(torch.conv2d), rand(1, 3, 6, 5), rand(4, 3, 3, 2), label="expanded-transposed"),
    case(
        "conv2d",
        lambda x, w, b: torch.conv2d(x, w, b, 2, 1, groups=2),
        rand(2, 4, 5, 6, dtype=C128),
        rand(4, 2, 3, 2, dtype=C128),
        rand(4, dtype=C128),
        label="complex",
    ),
    case("conv2d", torch.conv2d, rand(3, 5, 6, dtype=C128), rand(2, 3, 3, 2, dtype=C128), label="complex-unbatched"),
    case("conv3d", lambda x, w, b: torch.conv3d(x, w, b, 2, 1), rand(2, 2, 4, 5, 4), rand(3, 2, 3, 2, 3), rand(3)),
    case(
        "conv3d", lambda x, w: torch.conv3d(x, w, padding="same"), rand(2, 3, 4, 3), rand(2, 2, 2, 3, 2), label="same"
    ),
    case(
        "conv_transpose1d",
        lambda x, w, b: torch.conv_transpose1d(x, w, b, 2, 1, 1),
        rand(2, 3, 5),
        rand(3, 4, 3),
        rand(4),
    ),
    case(
        "conv_transpose2d",
        lambda x, w, b: torch.conv_transpose2d(x, w, b, (2, 3), 1, (1, 2), groups=2, dilation=(2, 1)),
        rand(2, 4, 4, 3),
        rand(4, 3, 3, 2),
        rand(6),
    ),
    case("conv_transpose2d", torch.conv_transpose2d, rand(3, 4, 3), rand(3, 2, 2, 2), rand(2), label="unbatched"),
    case(
        "conv_transpose2d",
        lambda x, w: torch.conv_transpose2d(x, w, stride=2),
        rand(1, 2, 3, 3, dtype=C128),
        rand(2, 2, 2, 2, dtype=C128),
        label="complex",
    ),
    case(
        "conv_transpose3d",
        lambda x, w, b: torch.conv_transpose3d(x, w, b, 2),
        rand(1, 2, 3, 2, 3),
        rand(2, 3, 2, 2, 2),
        rand(3),
    ),
    case(
        "convolution",
        lambda x, w, b: torch.convolution(x, w, b, [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
        rand(2, 3, 5, 6),
        rand(4, 3, 3, 2),
        rand(4),
    ),
    case(
        "convolution",
        lambda x, w: torch.convolution(x, w, None, [2], [1], [1], True, [1], 1),
        rand(2, 3, 5),
        rand(3, 4, 3),
        label="transposed",
    ),
    case(
        "_convolution",
        lambda x, w, b: torch._convolution(x, w, b, [1], [0], [1], False, [0], 1, False, False, True, True),
        rand(2, 3, 5),
        rand(4, 3, 3),
        rand(4),
    ),
    case("conv_tbc", lambda x, w, b: torch.conv_tbc(x, w, b, 1), rand(5, 2, 3), rand(3, 3, 4), rand(4)),
    case(
        "conv_tbc",
        lambda x, w, b: torch.conv_tbc(x, w, b, 1).sum(),
        rand(5, 2, 3),
        rand(3, 3, 4),
        rand(4),
        label="expanded",
    ),
    case(
        "conv_tbc",
        lambda x, w, b: torch.conv_tbc(x, w, b, 1),
        rand(5, 2, 3, dtype=C128),
        rand(3, 3, 4, dtype=C128),
        rand(4, dtype=C128),
        label="complex",
        torch_agrees=False,
        second="differences",
    ),
    case("convolution_backward", kernel([True, True, True]), rand(2, 4, 3, 4), rand(2, 3, 7, 8), rand(4, 3, 3, 2)),
    case(
        "convolution_backward",
        kernel([True, True, True], groups=2, dilation=1),
        rand(2, 4, 4, 4),
        rand(2, 6, 7, 6),
        rand(4, 3, 3, 2),
        label="groups",
    ),
    case(
        "convolution_backward",
        kernel([True, True, True], transposed=True),
        rand(2, 4, 9, 9),
        rand(2, 3, 4, 5),
        rand(3, 4, 3, 2),
        label="transposed",
    ),
    case(
        "convolution_backward",
        kernel([True, False, False]),
        rand(2, 4, 3, 4),
        rand(2, 3, 7, 8),
        rand(4, 3, 3, 2),
        label="input",
    ),
    case(
        "convolution_backward",
        kernel([False, True, False]),
        rand(2, 4, 3, 4),
        rand(2, 3, 7, 8),
        rand(4, 3, 3, 2),
        label="weight",
    ),
    case(
        "convolution_backward",
        kernel([False, False, True]),
        rand(2, 4, 3, 4),
        rand(2, 3, 7, 8),
        rand(4, 3, 3, 2),
        label="bias",
    ),
    case(
        "convolution_backward",
        kernel([False, True, True]),
        rand(2, 4, 3, 4),
        rand(2, 3, 7, 8),
        rand(4, 3, 3, 2),
        label="two",
    ),
]


SINGLE, HALF = {"dtype": torch.float32}, {"dtype": torch.bfloat16}
#: autocast lowers the arguments of convolutions.
AUTOCAST = {
    "conv2d": (torch.conv2d, rand(2, 3, 5, 5, **SINGLE), rand(4, 3, 3, 3, **SINGLE), rand(4, **SINGLE)),
    "conv1d-mixed": (torch.conv1d, rand(2, 3, 5, **HALF), rand(4, 3, 3, **SINGLE), rand(4, **SINGLE)),
    "conv_transpose2d": (torch.conv_transpose2d, rand(2, 3, 5, 5, **SINGLE), rand(3, 4, 3, 3, **SINGLE)),
}


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_in_low_precision_have_the_dtype_and_values_of_torch(
    dtype: torch.dtype, device: torch.device
) -> None:
    x, w, b = (rand(*s, dtype=dtype)(device) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (4,)))
    ours = [tracer.track(t.clone(), True) for t in (x, w, b)]
    native = [t.clone().requires_grad_() for t in (x, w, b)]
    for leaves in (ours, native):
        out = torch.conv2d(*leaves, padding=1)
        out.backward(cotangents([out])[0])
    for mine, theirs in zip(ours, native, strict=True):
        assert mine.grad.dtype == dtype
        torch.testing.assert_close(plain(mine.grad), theirs.grad, rtol=0, atol=0)


def test_channels_last_gradients_equal_torch(device: torch.device) -> None:
    x = rand(2, 3, 5, 6)(device).contiguous(memory_format=torch.channels_last)
    mine, theirs, w = tracer.track(x.clone(), True), x.clone().requires_grad_(), rand(4, 3, 3, 3)(device)
    for leaf in (mine, theirs):
        torch.conv2d(leaf, w).square().sum().backward()
    torch.testing.assert_close(plain(mine.grad), theirs.grad)


def test_the_gradient_of_a_one_by_one_convolution_of_ones_counts_the_places(device: torch.device) -> None:
    w = tracer.track(values([[[2.0]]])(device), True)
    torch.conv1d(torch.ones(1, 1, 5, dtype=torch.float64, device=device), w).sum().backward()
    assert w.grad.item() == 5


def test_input_and_weight_are_kept_and_the_bias_is_not(device: torch.device) -> None:
    x, w, b = (tracer.track(rand(*s)(device), True) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (4,)))
    kept = [t for t in torch.conv2d(x, w, b).grad_fn.saved if isinstance(t, torch.Tensor)]
    assert sorted(t.data_ptr() for t in kept) == sorted(t.data_ptr() for t in (x, w))


def test_third_derivatives_equal_torch(device: torch.device) -> None:
    def third(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = torch.autograd.grad(torch.conv2d(x, w, padding=1).pow(3).sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.pow(2).sum(), w, create_graph=True)[0]
        return torch.autograd.grad(second.sin().sum(), x)[0]

    x, w = rand(1, 2, 3, 3)(device), rand(2, 2, 2, 2)(device)
    mine = third(tracer.track(x.clone(), True), tracer.track(w.clone(), True))
    torch.testing.assert_close(plain(mine), third(x.clone().requires_grad_(), w.clone().requires_grad_()))


@pytest.mark.parametrize("name", AUTOCAST)
def test_under_autocast_dtypes_and_gradients_equal_torch(name: str, device: torch.device) -> None:
    function, *makers = AUTOCAST[name]
    check_under_autocast(function, makers, device)
