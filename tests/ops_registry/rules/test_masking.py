"""Rules of ``ops_registry/rules/masking.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import Case, case, rand, run_case

import tracer

COMPLEX = torch.complex128


def mask(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Every element of ``shape`` but each third."""
    return (torch.arange(torch.Size(shape).numel(), device=x.device) % 3 > 0).view(shape)


CASES = [
    case("masked_fill", lambda x: x.masked_fill(mask(x, 2, 3), 4.0) ** 2, rand(2, 3)),
    case(
        "masked_fill",
        lambda x: torch.masked_fill(x, mask=mask(x, 3), value=float("-inf")).exp() ** 2,
        rand(2, 3),
        label="minus-inf",
    ),
    case("masked_fill", lambda x: x.masked_fill(mask(x, 2, 3), 4.0) ** 2, rand(3), label="broadcast-input"),
    case("masked_fill", lambda x, v: x.masked_fill(mask(x, 2, 1), v * v) ** 2, rand(2, 3), rand(), label="tensor"),
    case("masked_fill", lambda x, v: (x * x).masked_fill_(mask(x, 3), v) ** 2, rand(2, 3), rand(), label="in-place"),
    # torch fails on its own gradient here.
    case(
        "masked_fill",
        lambda x, v: x.masked_fill(mask(x, 2, 3), v) ** 2,
        rand(2, 3, dtype=COMPLEX),
        rand(),
        torch_agrees=False,
        label="real-into-complex",
    ),
    case("masked_fill", lambda x, v: x.masked_fill(mask(x, 1), v) ** 2, rand(), rand(seed=1), label="0-d"),
    case("masked_fill", lambda x, v: x.masked_fill(mask(x, 0, 3), v) ** 2, rand(0, 3), rand(), label="empty"),
    case("masked_fill", lambda x, v: x.t().masked_fill(mask(x, 3, 2), v) ** 2, rand(2, 3), rand(), label="transposed"),
    case(
        "masked_fill", lambda x, v: x.masked_fill(mask(x, 2, 1, 1), v) ** 2, rand(2, 1, 2, 1, 3), rand(), label="rank-5"
    ),
    case("masked_select", lambda x: x.masked_select(mask(x, 2, 3)) ** 2, rand(2, 3)),
    case("masked_select", lambda x: torch.masked_select(x, mask=mask(x, 2, 3)) ** 2, rand(3), label="broadcast-input"),
    case(
        "masked_select",
        lambda x: x.masked_select(mask(x, 3)) ** 2,
        rand(2, 3, dtype=COMPLEX),
        label="broadcast-mask-complex",
    ),
    case("masked_select", lambda x: x.masked_select(x > 9) ** 2, rand(2, 3), label="nothing"),
    case("masked_select", lambda x: x.masked_select(x == x) ** 2, rand(), label="0-d"),
    case("masked_select", lambda x: x.t().masked_select(mask(x, 3, 2)) ** 2, rand(2, 3), label="transposed"),
    case("masked_scatter", lambda x, s: x.masked_scatter(mask(x, 2, 3), s * s) ** 2, rand(2, 3), rand(4)),
    case(
        "masked_scatter",
        lambda x, s: torch.masked_scatter(x, mask=mask(x, 3), source=s) ** 2,
        rand(2, 3),
        rand(3, 2),
        label="long-source",
    ),
    case(
        "masked_scatter",
        lambda x, s: x.masked_scatter(mask(x, 2, 3), s) ** 2,
        rand(3),
        rand(5),
        label="broadcast-input",
    ),
    case(
        "masked_scatter",
        lambda x, s: (x * x).masked_scatter_(mask(x, 2, 3), s) ** 2,
        rand(2, 3),
        rand(4),
        label="in-place",
    ),
    case(
        "masked_scatter",
        lambda x, s: x.masked_scatter(mask(x, 3), s) ** 2,
        rand(3, dtype=COMPLEX),
        rand(2, dtype=COMPLEX),
        label="complex",
    ),
    case(
        "masked_scatter",
        lambda x, s: x.masked_scatter(mask(x, 2, 3), s.t()) ** 2,
        rand(2, 3),
        rand(2, 2),
        label="transposed-source",
    ),
    case("masked_scatter", lambda x, s: x.masked_scatter(mask(x, 0), s) ** 2, rand(0), rand(2), label="empty"),
    case(
        "masked_scatter",
        lambda x, s: x.masked_scatter(mask(x, 2, 1, 1), s) ** 2,
        rand(1, 2, 2, 1, 2),
        rand(9),
        label="rank-5",
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill_": lambda b, v: b.masked_fill_(torch.tensor([True, False, False]), v.sum()),
    "masked_scatter_": lambda b, v: b.masked_scatter_(torch.tensor([True, False, True]), v),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("make", [torch.tensor, tracer.tensor], ids=["plain", "tracked"])
def test_tensor_written_in_place_into_a_buffer_gets_its_gradient(name: str, make: Any) -> None:
    buffer, v = make([0.0, 0.0, 0.0]), tracer.tensor([1.0, 2.0], requires_grad=True)
    assert WRITES[name](buffer, v) is buffer
    buffer.sum().backward()
    assert v.grad is not None
    assert v.grad.tolist() == [1, 1]


def test_masked_fill_hides_an_infinite_gradient() -> None:
    x = tracer.tensor([0.0, 4.0], requires_grad=True)
    (x.sqrt() * 1).masked_fill(torch.tensor([True, False]), 0).backward(torch.tensor([float("inf"), 1.0]))
    assert x.grad is not None
    assert x.grad[1].item() == 0.25


def test_masked_fill_of_a_complex_tensor_gives_its_real_value_a_real_gradient() -> None:
    value = tracer.tensor(5.0, requires_grad=True)
    filled = torch.tensor([1j, 2j, 3j]).masked_fill(torch.tensor([True, False, True]), value)
    filled.real.sum().backward()
    assert value.grad is not None
    assert value.grad.item() == 2


def test_masked_fill_keeps_the_mask_and_no_value() -> None:
    y = tracer.tensor([1.0, 2.0], requires_grad=True).masked_fill(torch.tensor([True, False]), 0)
    assert y.grad_fn is not None
    assert [k.dtype for k in y.grad_fn.saved or () if isinstance(k, torch.Tensor)] == [torch.bool]
