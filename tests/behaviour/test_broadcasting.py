"""Every binary op on mutually broadcastable shapes up to rank 6: gradients equal torch's and central differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.checking import check_differences, cotangents
from support.strategies import broadcastable_shapes, tensor_of

import tracer

POSITIVE = (0.5, 2.0)
ANY = (-2.0, 2.0)

BINARY: dict[str, tuple[Callable[..., torch.Tensor], tuple[float, float], tuple[float, float]]] = {
    "add": (torch.add, ANY, ANY),
    "add alpha": (lambda a, b: torch.add(a, b, alpha=-1.5), ANY, ANY),
    "sub": (torch.sub, ANY, ANY),
    "rsub": (torch.rsub, ANY, ANY),
    "mul": (torch.mul, ANY, ANY),
    "div": (torch.div, ANY, POSITIVE),
    "pow": (torch.pow, POSITIVE, ANY),
    "float_power": (torch.float_power, POSITIVE, ANY),
    "atan2": (torch.atan2, POSITIVE, ANY),
    "hypot": (torch.hypot, POSITIVE, ANY),
    "maximum": (torch.maximum, ANY, ANY),
    "minimum": (torch.minimum, ANY, ANY),
    "fmax": (torch.fmax, ANY, ANY),
    "fmin": (torch.fmin, ANY, ANY),
    "logaddexp": (torch.logaddexp, ANY, ANY),
    "logaddexp2": (torch.logaddexp2, ANY, ANY),
    "xlogy": (torch.xlogy, ANY, POSITIVE),
    "copysign": (torch.copysign, POSITIVE, POSITIVE),
    "where": (lambda a, b: torch.where(torch.tensor(True), a, b) + torch.where(torch.tensor(False), a, b), ANY, ANY),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ANY, ANY),
    "clamp": (lambda a, b: a.clamp(min=b), ANY, ANY),
    "remainder": (lambda a, b: torch.remainder(a, b + 4), (0.1, 1.9), POSITIVE),
    "fmod": (lambda a, b: torch.fmod(a, b + 4), (0.1, 1.9), POSITIVE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BINARY)
@given(shapes=broadcastable_shapes(2), seed=st.integers(0, 1000))
def test_binary_ops_broadcast(name: str, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    function, left, right = BINARY[name]
    data = [tensor_of(shapes[0], seed, *left), tensor_of(shapes[1], seed + 1, *right)]
    ours, theirs = [tracer.tensor(d, requires_grad=True) for d in data], [d.clone().requires_grad_() for d in data]
    out, expected = function(*ours), function(*theirs)
    torch.testing.assert_close(out.detach().as_subclass(torch.Tensor), expected.detach())
    found = torch.autograd.grad(out, ours, cotangents([expected]))
    wanted = torch.autograd.grad(expected, theirs, cotangents([expected]))
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w, rtol=1e-10, atol=1e-10)
    check_differences(function, data, (0, 1), list(found))


@given(shapes=broadcastable_shapes(3), seed=st.integers(0, 1000))
def test_ternary_ops_broadcast(shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    data = [tensor_of(s, seed + i, 0.5, 2.0) for i, s in enumerate(shapes)]
    for function in (torch.addcmul, torch.addcdiv, lambda a, b, c: torch.where(a > 1, b, c) * a):
        ours, theirs = [tracer.tensor(d, requires_grad=True) for d in data], [d.clone().requires_grad_() for d in data]
        out, expected = function(*ours), function(*theirs)
        found = torch.autograd.grad(out, ours, cotangents([expected]))
        wanted = torch.autograd.grad(expected, theirs, cotangents([expected]))
        for f, w in zip(found, wanted, strict=True):
            torch.testing.assert_close(f, w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 4, 5), (3, 1, 1)),
        ((2, 3, 2, 2, 2), (2, 1, 2)),
        ((), (2, 3)),
        ((0, 3), (1, 3)),
        ((1, 1, 1, 1, 1, 1), (2,)),
    ],
    ids=["image batch against channels", "volume", "scalar", "empty", "rank 6"],
)
def test_named_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    data = [tensor_of(left, 0), tensor_of(right, 1)]
    ours, theirs = [tracer.tensor(d, requires_grad=True) for d in data], [d.clone().requires_grad_() for d in data]
    out, expected = ours[0] * ours[1] + ours[1], theirs[0] * theirs[1] + theirs[1]
    found, wanted = torch.autograd.grad(out.sum(), ours), torch.autograd.grad(expected.sum(), theirs)
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w)


NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x + 2": lambda x: x + 2,
    "2 + x": lambda x: 2 + x,
    "x - 2": lambda x: x - 2,
    "2 - x": lambda x: 2 - x,
    "x * 2": lambda x: x * 2,
    "2 * x": lambda x: 2 * x,
    "x / 2": lambda x: x / 2,
    "2 / x": lambda x: 2 / x,
    "x ** 3": lambda x: x**3,
    "3 ** x": lambda x: 3**x,
    "x ** 0.5": lambda x: x**0.5,
    "x ** 0": lambda x: x**0 + x * 0,
    "x % 2": lambda x: x % 2,
    "-x": lambda x: -x,
    "abs(x)": abs,
    "+x": lambda x: +x,
    "x + True": lambda x: x + True,
    "x * 2j": lambda x: (x * 2j).imag,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_on_either_side(name: str) -> None:
    function = NUMBERS[name]
    data = torch.tensor([0.7, 1.3, 2.9], dtype=torch.float64)
    x, native = tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()
    out, expected = function(x), function(native)
    assert out.dtype == expected.dtype
    torch.testing.assert_close(out.detach().as_subclass(torch.Tensor), expected.detach())
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), torch.autograd.grad(expected.sum(), native))


@pytest.mark.parametrize(
    "function", [lambda x: x // 2, lambda x: 7 // x, lambda x: 2 % x], ids=["x // 2", "7 // x", "2 % x"]
)
def test_numbers_where_torch_has_no_derivative(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    data = torch.tensor([0.75, 1.3, 2.9], dtype=torch.float64)
    x = tracer.tensor(data, requires_grad=True)
    out = function(x)
    (found,) = torch.autograd.grad(out, x, cotangents([data]))
    check_differences(function, [data], (0,), [found])
