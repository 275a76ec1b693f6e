"""Rules of ``ops_registry/rules/grid_sampling.py``."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, check_under_autocast, plain, rand, run_case, values

import tracer

aten = torch.ops.aten
PADDINGS = ("zeros", "border", "reflection")


def sampled(mode: str, padding: str, aligned: bool) -> Any:
    return lambda x, grid: F.grid_sample(x, grid, mode, padding, aligned)


def kernel(function: Any, mode: int, padding: int, mask: tuple[bool, bool]) -> Any:
    def call(g: torch.Tensor, x: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        results = function(g, x, grid, mode, padding, False, list(mask))
        return [r for r, wanted in zip(results, mask, strict=True) if wanted]

    return call


# Points reach outside the input, which is [-1, 1]; none of them falls on a kink.
PLANE = rand(2, 3, 4, 5), rand(2, 3, 2, 2, low=-1.6, high=1.6)
VOLUME = rand(1, 2, 3, 4, 3), rand(1, 2, 2, 2, 3, low=-1.6, high=1.6)

CASES = [
    *(
        case("grid_sampler", sampled(*modes), *PLANE, label="-".join(map(str, modes)))
        for modes in itertools.product(("bilinear", "nearest", "bicubic"), PADDINGS, (True, False))
    ),
    *(
        case("grid_sampler", sampled(*modes), *VOLUME, label="volume-" + "-".join(map(str, modes)))
        for modes in itertools.product(("bilinear", "nearest"), PADDINGS, (True, False))
    ),
    case("grid_sampler_2d", lambda x, grid: torch.grid_sampler_2d(x, grid, 0, 1, False), *PLANE),
    case("grid_sampler_3d", lambda x, grid: torch.grid_sampler_3d(x, grid, 0, 0, True), *VOLUME),
    case("grid_sampler", sampled("bilinear", "zeros", False), rand(0, 3, 4, 5), rand(0, 3, 2, 2), label="empty-batch"),
    *(
        case(
            "grid_sampler_2d_backward",
            kernel(aten.grid_sampler_2d_backward, mode, padding, mask),
            rand(2, 3, 3, 2),
            *PLANE,
            label=f"{mode}-{padding}-{mask}",
        )
        for mode, padding, mask in [
            (0, 0, (True, True)),
            (0, 2, (False, True)),
            (1, 0, (True, False)),
            (2, 1, (True, True)),
        ]
    ),
    case(
        "grid_sampler_3d_backward",
        kernel(aten.grid_sampler_3d_backward, 0, 0, (True, True)),
        rand(1, 2, 2, 2, 2),
        *VOLUME,
    ),
]


HALF = {"dtype": torch.bfloat16}
#: autocast raises the arguments of this to single precision on the CPU.
AUTOCAST = {"grid_sampler": (sampled("bilinear", "zeros", False), rand(2, 3, 4, 5, **HALF), rand(2, 2, 3, 2, **HALF))}


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_the_slope_between_two_pixels_is_their_difference(device: torch.device) -> None:
    x = values([[[[1.0, 4.0]]]])(device)
    grid = tracer.track(values([[[[0.1, 0.0]]]])(device), True)
    F.grid_sample(x, grid, align_corners=True).sum().backward()
    # One unit of the grid is half of the one pixel between both.
    torch.testing.assert_close(plain(grid.grad).flatten().tolist(), [1.5, 0.0])


def test_a_point_far_outside_moves_nothing_under_border_padding(device: torch.device) -> None:
    grid = tracer.track(values([[[[3.0, -5.0]]]])(device), True)
    F.grid_sample(rand(1, 1, 3, 3)(device), grid, padding_mode="border", align_corners=True).sum().backward()
    assert grid.grad.flatten().tolist() == [0, 0]


@pytest.mark.parametrize("name", AUTOCAST)
def test_under_autocast_dtypes_and_gradients_equal_torch(name: str, device: torch.device) -> None:
    function, *makers = AUTOCAST[name]
    check_under_autocast(function, makers, device)
