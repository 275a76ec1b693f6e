"""Rules of ``ops_registry/rules/resampling.py``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, rand, run_case

from ops_registry.rules.resampling import INTERPOLATIONS

aten = torch.ops.aten
SIZES = {1: (2, 3, 6), 2: (2, 3, 5, 4), 3: (1, 2, 3, 4, 3)}


def options(name: str) -> tuple[bool, ...]:
    """``align_corners`` where the op takes it."""
    return () if "nearest" in name else (False,)


def interpolations() -> list[Case]:
    made = []
    for name in INTERPOLATIONS:
        if not hasattr(aten, name):
            continue
        op, adjoint, more = getattr(aten, name), getattr(aten, f"{name}_backward"), options(name)
        n = int(name.replace("_aa", "")[-2])
        shape, small, big = SIZES[n], [3, 5, 2][:n], [9, 7, 8][:n]
        made += [
            case(f"{name}", lambda x, f=op.default, s=big, m=more: f(x, s, *m), rand(*shape), label="default"),
            case(f"{name}", lambda x, f=op, s=small, m=more: f(x, s, *m, None), rand(*shape), label="size"),
            case(f"{name}.vec", lambda x, f=op, m=more, n=n: f(x, None, *m, [1.7] * n), rand(*shape)),
            case(
                f"{name}_backward",
                lambda g, f=adjoint, b=big, s=shape, m=more: f(g, b, s, *m),
                rand(*shape[:2], *big),
            ),
        ]
    return made


CASES = [
    *interpolations(),
    case(
        "upsample_linear1d.vec",
        lambda x: F.interpolate(x, 7, mode="linear", align_corners=True),
        rand(2, 3, 5),
        label="aligned",
    ),
    case(
        "upsample_bilinear2d.vec", lambda x: F.interpolate(x, scale_factor=(2, 0.5), mode="bilinear"), rand(2, 3, 4, 6)
    ),
    case("upsample_nearest2d.vec", lambda x: F.interpolate(x, scale_factor=2), rand(0, 3, 4, 6), label="empty-batch"),
    case(
        "upsample_nearest2d.vec", lambda x: F.interpolate(x.expand(2, 3, 4, 6), 5), rand(1, 3, 4, 6), label="expanded"
    ),
    case("affine_grid_generator", lambda t: F.affine_grid(t, (2, 3, 4, 5), True), rand(2, 2, 3)),
    case("affine_grid_generator", lambda t: F.affine_grid(t, (2, 1, 3, 2, 4), False), rand(2, 3, 4), label="volume"),
    case(
        "affine_grid_generator_backward",
        lambda g: aten.affine_grid_generator_backward(g, [2, 3, 4, 5], True),
        rand(2, 4, 5, 2),
    ),
    case("im2col", lambda x: F.unfold(x, (2, 3), padding=1, stride=(2, 1)), rand(2, 3, 4, 5)),
    case("im2col", lambda x: F.unfold(x, 2, dilation=2), rand(3, 4, 5), label="unbatched"),
    case("im2col", lambda x: F.unfold(x, 2), rand(1, 2, 3, 3, dtype=torch.complex128), label="complex"),
    case("col2im", lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=(2, 1)), rand(2, 18, 15)),
    case("col2im", lambda x: F.fold(x, (4, 5), 2), rand(8, 12), label="unbatched"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_a_repeated_pixel_gets_the_sum_of_its_copies(device: torch.device) -> None:
    import tracer

    x = tracer.track(rand(1, 1, 2, 2)(device), True)
    F.interpolate(x, scale_factor=3).sum().backward()
    assert x.grad.flatten().tolist() == [9, 9, 9, 9]
