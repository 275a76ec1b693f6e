"""Rules of ``ops_registry/rules/padding.py``."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, rand, run_case
from support.results import square

import tracer

C = torch.complex128
nn = torch._C._nn
aten = torch.ops.aten


def kernel_squared(kind: str, n: int, grad: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    return square(getattr(aten, f"{kind}_pad{n}d_backward")(grad, padded, (1, 2) * n))


KERNELS = [(kind, n) for kind in ("reflection", "replication") for n in (1, 2, 3)]

CASES = [
    case("constant_pad_nd", lambda x: square(torch.constant_pad_nd(x, (1, 2))), rand(2, 3)),
    case(
        "constant_pad_nd",
        lambda x: square(torch.constant_pad_nd(x, pad=(-1, 2, 0, -1), value=3.0)),
        rand(3, 3, dtype=C),
        label="crops",
    ),
    case("constant_pad_nd", lambda x: torch.constant_pad_nd(x, (1, 1)), rand(0, 3), label="empty"),
    case("pad", lambda x: square(F.pad(x, (1, 2, 0, 1))), rand(2, 3)),
    case("pad", lambda x: square(F.pad(x, [1, -1], value=2.0)), rand(2, 3, dtype=C), label="complex-value"),
    case("pad", lambda x: square(F.pad(x, (1, 0, 0, 1, 2, 0, 0, 0, 1, 1))), rand(1, 2, 1, 2, 2), label="rank-5"),
    case("pad", lambda x: square(F.pad(x.t(), (1, 0))), rand(2, 3), label="transposed"),
    case("pad", lambda x: square(F.pad(x, pad=(2, 1), mode="reflect")), rand(2, 3), label="reflect-1d"),
    case(
        "pad", lambda x: square(F.pad(x, (2, 1, 0, 1), mode="reflect")), rand(1, 2, 3, 3, dtype=C), label="reflect-2d"
    ),
    case(
        "pad", lambda x: square(F.pad(x, (1, 1, 0, 1, 1, 0), mode="reflect")), rand(1, 1, 2, 2, 3), label="reflect-3d"
    ),
    case("pad", lambda x: square(F.pad(x, (2, 1), mode="replicate")), rand(1, 2, 3), label="replicate-1d"),
    case("pad", lambda x: square(F.pad(x, (2, -1, 0, 4), mode="replicate")), rand(2, 3, 3), label="replicate-2d-crops"),
    case(
        "pad",
        lambda x: square(F.pad(x, (2, 1, 0, 1, 3, 0), mode="replicate")),
        rand(1, 1, 2, 2, 2, dtype=C),
        label="replicate-3d",
    ),
    case("pad", lambda x: square(F.pad(x, (2, 1), mode="circular")), rand(1, 2, 3), label="circular-1d"),
    case(
        "pad", lambda x: square(F.pad(x, (2, 3, 0, 1), mode="circular")), rand(1, 2, 3, 3, dtype=C), label="circular-2d"
    ),
    case(
        "pad", lambda x: square(F.pad(x, (1, 1, 0, 2, 2, 0), mode="circular")), rand(1, 1, 2, 2, 3), label="circular-3d"
    ),
    case("pad", lambda x: square(F.pad(x, (-1, 2, 1, -2), mode="circular")), rand(1, 2, 4, 4), label="circular-crops"),
    case("_pad_circular", lambda x: square(nn._pad_circular(x, (1, 2))), rand(1, 2, 3)),
    case("reflection_pad1d", lambda x: square(nn.reflection_pad1d(x, (2, 1))), rand(2, 3)),
    case("reflection_pad2d", lambda x: square(nn.reflection_pad2d(x, (1, 1, 0, 2))), rand(2, 3, 3)),
    case("reflection_pad3d", lambda x: square(nn.reflection_pad3d(x, (1, 1, 0, 1, 1, 0))), rand(1, 2, 2, 2)),
    case("replication_pad1d", lambda x: square(nn.replication_pad1d(x, (2, 1))), rand(2, 3)),
    case("replication_pad2d", lambda x: square(nn.replication_pad2d(x, (1, 1, 0, 2))), rand(2, 3, 3)),
    case("replication_pad3d", lambda x: square(nn.replication_pad3d(x, (1, 1, 0, 1, 1, 0))), rand(1, 2, 2, 2)),
    # The kernels of the way back. They read the shape of their second argument alone: nothing flows there.
    *(
        case(f"{kind}_pad{n}d_backward", partial(kernel_squared, kind, n), rand(2, *(6,) * n), rand(2, *(3,) * n))
        for kind, n in KERNELS
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding_keeps_no_tensor(mode: str) -> None:
    x = tracer.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    assert not F.pad(x, (1, 1), mode=mode).grad_fn.saved_versions


def test_reflection_counts_the_edge_once() -> None:
    x = tracer.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    F.pad(x, (2, 0), mode="reflect").sum().backward()
    assert x.grad.tolist() == [[1.0, 2.0, 2.0]]


def test_replication_adds_all_that_was_padded_to_the_edge() -> None:
    x = tracer.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    F.pad(x, (2, 1), mode="replicate").sum().backward()
    assert x.grad.tolist() == [[3.0, 1.0, 2.0]]


def test_circular_padding_adds_to_the_other_end() -> None:
    x = tracer.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    torch.autograd.backward(F.pad(x, (1, 1), mode="circular"), torch.tensor([[1.0, 10.0, 100.0, 1000.0, 10000.0]]))
    assert x.grad.tolist() == [[10010.0, 100.0, 1001.0]]


def test_what_was_cropped_receives_zero() -> None:
    x = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    F.pad(x, (-1, 1)).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0]


def test_too_wide_a_reflection_is_refused_as_in_torch() -> None:
    with pytest.raises(RuntimeError, match="Padding size should be less than"):
        F.pad(tracer.tensor([[1.0, 2.0]], requires_grad=True), (2, 0), mode="reflect")
