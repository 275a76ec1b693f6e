"""Rules of ``ops_registry/rules/pooling.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, Make, case, check_under_autocast, plain, rand, run_case, values

import tracer

aten = torch.ops.aten


def spread(*shape: int) -> Make:
    """Values that differ by at least 0.1, so that no maximum is at a kink."""

    def make(device: torch.device) -> torch.Tensor:
        n = torch.Size(shape).numel()
        order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
        return (order.double() / 10 - n / 20).reshape(shape).to(device)

    return make


def first(function: Callable[..., Any], *args: Any) -> Callable[..., torch.Tensor]:
    """The maxima alone of a function that returns their places too."""
    return lambda x: function(x, *args)[0]


def placed(
    kernel: Callable[..., torch.Tensor], forward: Callable[..., Any], *window: Any
) -> Callable[..., torch.Tensor]:
    """The backward kernel of a maximum, as a function of its gradient and its input."""
    return lambda g, x: kernel(g, x, *window, forward(x.detach())[1])


def fractional(dims: int, shape: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    samples = rand(*shape[:2], dims, low=0.0, high=1.0)
    function = (torch._C._nn.fractional_max_pool2d, torch._C._nn.fractional_max_pool3d)[dims - 2]
    return lambda x: function(x, 2, (3,) * dims, samples(x.device))


def max2d(x: torch.Tensor) -> Any:
    return F.max_pool2d(x, 3, 2, 1, return_indices=True)


def apart2d(x: torch.Tensor) -> Any:
    """Windows that do not overlap: of a place chosen twice, unpooling would keep one value, whichever comes last."""
    return F.max_pool2d(x, 2, return_indices=True)


def max3d(x: torch.Tensor) -> Any:
    return F.max_pool3d(x, 2, return_indices=True)


nn = torch._C._nn

CASES = [
    case("max_pool1d", lambda x: torch.max_pool1d(x, 3, 2, 1), spread(2, 3, 9)),
    case(
        "max_pool1d",
        lambda x: F.max_pool1d(x, kernel_size=2, dilation=2, ceil_mode=True),
        spread(3, 9),
        label="unbatched",
    ),
    case("max_pool1d_with_indices", first(torch.max_pool1d_with_indices, [3]), spread(2, 3, 9)),
    case("max_pool2d", lambda x: torch.max_pool2d(x, 2), spread(2, 3, 6, 5)),
    case(
        "max_pool2d",
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2), True),
        spread(2, 3, 7, 6),
        label="window",
    ),
    case("max_pool2d", lambda x: torch.max_pool2d(x, 2), spread(3, 6, 5), label="unbatched"),
    case("max_pool2d", lambda x: torch.max_pool2d(x, 2), spread(0, 3, 6, 5), label="empty-batch"),
    case("max_pool2d", lambda x: torch.max_pool2d(x.transpose(-1, -2), 2), spread(2, 3, 6, 5), label="transposed"),
    case("max_pool2d_with_indices", first(nn.max_pool2d_with_indices, 2, 1), spread(2, 3, 5, 5)),
    case("max_pool3d", lambda x: torch.max_pool3d(x, 2, stride=1, padding=1), spread(2, 2, 4, 3, 4)),
    case("max_pool3d_with_indices", first(nn.max_pool3d_with_indices, 2), spread(2, 2, 4, 4, 4)),
    case("adaptive_max_pool1d", first(torch.adaptive_max_pool1d, 3), spread(2, 3, 7)),
    case("adaptive_max_pool2d", first(nn.adaptive_max_pool2d, (3, 2)), spread(2, 3, 7, 5)),
    case("adaptive_max_pool3d", first(nn.adaptive_max_pool3d, 2), spread(2, 3, 4, 3, 5)),
    case("fractional_max_pool2d", lambda x: fractional(2, (2, 3))(x)[0], spread(2, 3, 7, 7)),
    case("fractional_max_pool3d", lambda x: fractional(3, (2, 2))(x)[0], spread(2, 2, 6, 6, 6)),
    case(
        "max_unpool2d",
        lambda x: F.max_unpool2d(x, apart2d(spread(2, 3, 7, 6)(x.device))[1], 2, output_size=(7, 6)),
        rand(2, 3, 3, 3),
    ),
    case(
        "max_unpool3d", lambda x: F.max_unpool3d(x, max3d(spread(1, 2, 4, 4, 4)(x.device))[1], 2), rand(1, 2, 2, 2, 2)
    ),
    case("avg_pool1d", lambda x: torch.avg_pool1d(x, 3, 2, 1), rand(2, 3, 8)),
    case(
        "avg_pool1d",
        lambda x: torch.avg_pool1d(x, [2], ceil_mode=True, count_include_pad=False),
        rand(3, 7),
        label="unbatched",
    ),
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), rand(2, 3, 6, 5)),
    case("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2), 1, (1, 0), True, False), rand(3, 6, 5), label="window"),
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 2, divisor_override=3), rand(2, 3, 6, 5), label="divisor"),
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), rand(0, 3, 6, 5), label="empty-batch"),
    case("avg_pool2d", lambda x: F.avg_pool2d(x.expand(2, 3, 6, 5), 2), rand(1, 3, 6, 5), label="expanded"),
    case("avg_pool3d", lambda x: F.avg_pool3d(x, 2, stride=1, padding=1), rand(2, 2, 3, 4, 3)),
    case("adaptive_avg_pool1d", lambda x: torch.adaptive_avg_pool1d(x, 3), rand(2, 3, 7)),
    case("adaptive_avg_pool1d", lambda x: torch.adaptive_avg_pool1d(x, 1), rand(3, 7), label="one"),
    case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, None)), rand(2, 3, 7, 4)),
    case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), rand(2, 3, 5, 4), label="one"),
    case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (1, 2)), rand(3, 5, 4), label="unbatched"),
    case("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 1, 3)), rand(2, 2, 3, 4, 5)),
    case("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 1), rand(2, 2, 3, 4, 5), label="one"),
    case("_adaptive_avg_pool2d", lambda x: aten._adaptive_avg_pool2d(x, [2, 3]), rand(2, 3, 5, 4)),
    case("_adaptive_avg_pool3d", lambda x: aten._adaptive_avg_pool3d(x, [2, 3, 1]), rand(2, 2, 3, 4, 3)),
    case(
        "max_pool2d_with_indices_backward",
        placed(aten.max_pool2d_with_indices_backward, max2d, 3, 2, 1, 1, False),
        rand(2, 3, 4, 4),
        spread(2, 3, 7, 7),
    ),
    case(
        "max_pool3d_with_indices_backward",
        placed(aten.max_pool3d_with_indices_backward, max3d, 2, 2, 0, 1, False),
        rand(1, 2, 2, 2, 2),
        spread(1, 2, 4, 4, 4),
    ),
    case(
        "adaptive_max_pool2d_backward",
        placed(aten.adaptive_max_pool2d_backward, lambda x: nn.adaptive_max_pool2d(x, 3)),
        rand(2, 3, 3, 3),
        spread(2, 3, 5, 7),
    ),
    case(
        "adaptive_max_pool3d_backward",
        placed(aten.adaptive_max_pool3d_backward, lambda x: nn.adaptive_max_pool3d(x, 2)),
        rand(1, 2, 2, 2, 2),
        spread(1, 2, 3, 4, 5),
    ),
    case(
        "fractional_max_pool2d_backward",
        placed(aten.fractional_max_pool2d_backward, fractional(2, (2, 3)), [2, 2], [3, 3]),
        rand(2, 3, 3, 3),
        spread(2, 3, 7, 7),
    ),
    case(
        "fractional_max_pool3d_backward",
        placed(aten.fractional_max_pool3d_backward, fractional(3, (1, 2)), [2] * 3, [3] * 3),
        rand(1, 2, 3, 3, 3),
        spread(1, 2, 6, 6, 6),
    ),
    case(
        "avg_pool2d_backward",
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [1, 0], True, False, None),
        rand(2, 3, 4, 3),
        rand(2, 3, 6, 5),
    ),
    case(
        "avg_pool3d_backward",
        lambda g, x: aten.avg_pool3d_backward(g, x, [2] * 3, [], [0] * 3, False, True, 3),
        rand(1, 2, 2, 2, 2),
        rand(1, 2, 4, 5, 4),
    ),
    case("_adaptive_avg_pool2d_backward", aten._adaptive_avg_pool2d_backward, rand(2, 3, 2, 3), rand(2, 3, 5, 4)),
    case("_adaptive_avg_pool3d_backward", aten._adaptive_avg_pool3d_backward, rand(1, 2, 2, 3, 1), rand(1, 2, 4, 3, 5)),
    # Python-level functions, made of the ops above.
    case("avg_pool2d", lambda x: F.lp_pool2d(x, 2.0, 2), rand(2, 3, 4, 4, low=0.5), label="lp_pool"),
    case("avg_pool3d", lambda x: F.local_response_norm(x, 3), rand(2, 5, 4, 3), label="local_response_norm"),
]


HALF = {"dtype": torch.bfloat16}
#: autocast raises the arguments of these to single precision on the CPU.
AUTOCAST = {
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), rand(1, 2, 4, 4, 4, **HALF)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 3), rand(1, 2, 4, 4, 4, **HALF)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), rand(1, 2, 4, 4, 4, **HALF)),
}


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_a_tie_goes_to_the_first_place(device: torch.device) -> None:
    x = tracer.track(values([[[1.0, 3.0, 3.0, 2.0]]])(device), True)
    torch.max_pool1d(x, 4).sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 0, 0]


def test_overlapping_windows_add_up(device: torch.device) -> None:
    x = tracer.track(values([[[1.0, 3.0, 2.0]]])(device), True)
    torch.max_pool1d(x, 2, 1).sum().backward()
    assert x.grad.flatten().tolist() == [0, 2, 0]


def test_nan_is_the_maximum_of_its_window(device: torch.device) -> None:
    x = tracer.track(values([[[1.0, float("nan"), 2.0]]])(device), True)
    torch.max_pool1d(x, 3).sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 0]


def test_the_mean_of_a_plane_keeps_nothing(device: torch.device) -> None:
    x = tracer.track(rand(2, 3, 8, 8)(device), True)
    assert not any(isinstance(k, torch.Tensor) for k in F.adaptive_avg_pool2d(x, 1).grad_fn.saved)


def test_a_maximum_keeps_its_input_and_the_places(device: torch.device) -> None:
    x = tracer.track(rand(2, 3, 8, 8)(device), True)
    kept = [k for k in torch.max_pool2d(x, 2).grad_fn.saved if isinstance(k, torch.Tensor)]
    assert sorted(k.numel() for k in kept) == [2 * 3 * 4 * 4, 2 * 3 * 8 * 8]
    assert x.data_ptr() in [k.data_ptr() for k in kept]


def test_places_are_returned_as_plain_integers(device: torch.device) -> None:
    x = tracer.track(rand(1, 1, 4, 4)(device), True)
    result, places = F.max_pool2d(x, 2, return_indices=True)
    assert result.requires_grad
    assert type(places) is torch.Tensor and places.dtype == torch.int64


def test_channels_last_gradients_equal_torch(device: torch.device) -> None:
    x = spread(2, 3, 6, 6)(device).contiguous(memory_format=torch.channels_last)
    mine, theirs = tracer.track(x.clone(), True), x.clone().requires_grad_()
    for leaf in (mine, theirs):
        pooled = F.max_pool2d(leaf, 2) + F.avg_pool2d(leaf, 2) + F.adaptive_avg_pool2d(leaf, 3)
        pooled.square().sum().backward()
    torch.testing.assert_close(plain(mine.grad), theirs.grad)


@pytest.mark.parametrize("name", AUTOCAST)
def test_under_autocast_dtypes_and_gradients_equal_torch(name: str, device: torch.device) -> None:
    function, *makers = AUTOCAST[name]
    check_under_autocast(function, makers, device)
