"""Rules of ``ops_registry/rules/softmax.py``."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, rand, run_case

import tracer

f32, f64, c128 = torch.float32, torch.float64, torch.complex128

CASES = [
    *(
        case(name, lambda x, f=f, d=dim: f(x, d), rand(*shape), label=f"{shape}-{dim}")
        for name, f in [("softmax", torch.softmax), ("log_softmax", torch.log_softmax), ("logsumexp", torch.logsumexp)]
        for shape, dim in [((3, 4), 0), ((3, 4), -1), ((2, 3, 1, 2, 2), 1), ((), 0), ((0, 3), 1), ((3, 1), 1)]
    ),
    *(
        case(name, lambda x, f=f: f(x.t(), dim=1), rand(3, 4), label="transposed-keyword")
        for name, f in [("softmax", torch.softmax), ("log_softmax", torch.log_softmax), ("logsumexp", torch.logsumexp)]
    ),
    *(
        case(name, lambda x, f=f: f(x.expand(3, 4), 0), rand(4), label="expanded")
        for name, f in [("softmax", torch.softmax), ("log_softmax", torch.log_softmax), ("logsumexp", torch.logsumexp)]
    ),
    case("softmax", lambda x: x.softmax(1), rand(3, 4), label="method"),
    case("softmax", lambda x: F.softmax(x, dim=1), rand(3, 4), label="functional"),
    case("softmax", lambda x: F.softmin(x, dim=1), rand(3, 4), label="softmin"),
    case("softmax", lambda x: torch.special.softmax(x, 1), rand(3, 4), label="special"),
    case(
        "softmax",
        lambda x: torch.softmax(x, 1, dtype=f64),
        rand(3, 4, dtype=f32),
        label="dtype",
        differences=False,
        rtol=1e-6,
    ),
    case("log_softmax", lambda x: x.log_softmax(1), rand(3, 4), label="method"),
    case("log_softmax", lambda x: F.log_softmax(x, dim=1), rand(3, 4), label="functional"),
    case("log_softmax", lambda x: torch.special.log_softmax(x, 1), rand(3, 4), label="special"),
    case(
        "log_softmax",
        lambda x: torch.log_softmax(x, 1, dtype=f64),
        rand(3, 4, dtype=f32),
        label="dtype",
        differences=False,
        rtol=1e-6,
    ),
    case("_softmax", lambda x: torch._softmax(x, 1, False), rand(3, 4)),
    case("_log_softmax", lambda x: torch._log_softmax(x, 1, False), rand(3, 4)),
    case("_safe_softmax", lambda x: torch._safe_softmax(x, 1), rand(3, 4)),
    case(
        "_softmax_backward_data",
        lambda g, y: torch._softmax_backward_data(g, y, 1, f64),
        rand(3, 4),
        rand(3, 4, seed=1),
    ),
    case(
        "_softmax_backward_data",
        lambda g, y: torch._softmax_backward_data(g, y, 0, f64),
        rand(),
        rand(seed=1),
        label="0-d",
    ),
    case(
        "_log_softmax_backward_data",
        lambda g, y: torch._log_softmax_backward_data(g, y, 1, f64),
        rand(3, 4),
        rand(3, 4, seed=1),
    ),
    case(
        "_log_softmax_backward_data",
        lambda g, y: torch._log_softmax_backward_data(g, y, 0, f64),
        rand(),
        rand(seed=1),
        label="0-d",
    ),
    case("logsumexp", lambda x: torch.logsumexp(x, (0, -1), keepdim=True), rand(2, 3, 4), label="several-dimensions"),
    case("logsumexp", lambda x: x.logsumexp((2, 0)), rand(2, 3, 4), label="unsorted-dimensions"),
    case("logsumexp", lambda x: torch.special.logsumexp(x, 1), rand(3, 4), label="special"),
    case("logsumexp", lambda x: torch.logsumexp(x, 1), rand(3, 4, dtype=c128), label="complex"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("function", [torch.logsumexp, torch.special.logsumexp], ids=["torch", "special"])
def test_logsumexp_of_all_minus_infinity_has_gradient_zero(function: object, device: torch.device) -> None:
    # pytorch/pytorch#31829, pytorch/pytorch#49724, jax-ml/jax#6811
    x = tracer.track(torch.tensor([[-math.inf, -math.inf], [0.0, -math.inf]], device=device), True)
    function(x, 1).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_second_derivative_of_logsumexp_of_all_minus_infinity_is_zero(device: torch.device) -> None:
    x = tracer.track(torch.full((2,), -math.inf, device=device), True)
    (g,) = torch.autograd.grad(torch.logsumexp(x, 0), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    assert h.tolist() == [0.0, 0.0]


def test_logsumexp_of_huge_inputs_does_not_overflow(device: torch.device) -> None:
    x = tracer.track(torch.tensor([1e4, 1e4], dtype=f64, device=device), True)
    torch.logsumexp(x, 0).backward()
    assert x.grad.tolist() == pytest.approx([0.5, 0.5])


def test_softmax_gives_masked_entries_no_gradient(device: torch.device) -> None:
    x = tracer.track(torch.tensor([0.0, -math.inf, 0.0], device=device), True)
    torch.softmax(x, 0)[0].backward()
    assert x.grad.tolist() == [0.25, 0.0, -0.25]


def test_safe_softmax_of_a_masked_row_is_zero_with_gradient_zero(device: torch.device) -> None:
    x = tracer.track(torch.full((1, 3), -math.inf, device=device), True)
    out = torch._safe_softmax(x, 1)
    out.sum().backward()
    assert out.tolist() == [[0.0, 0.0, 0.0]]
    assert x.grad.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax], ids=["softmax", "log_softmax"])
def test_a_wider_result_gives_a_gradient_in_the_dtype_of_the_input(function: object, device: torch.device) -> None:
    x = tracer.track(torch.tensor([1.0, 2.0], dtype=torch.bfloat16, device=device), True)
    out = function(x, 0, dtype=f32)
    out[0].backward()
    assert (out.dtype, x.grad.dtype) == (f32, torch.bfloat16)


def test_softmax_keeps_its_result_and_not_its_input() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    hidden = x * 1
    out = torch.softmax(hidden, 0)
    hidden.mul_(0)
    out[0].backward()
    assert x.grad[0] == pytest.approx(math.e / (1 + math.e) ** 2)


def test_logsumexp_of_nothing_is_minus_infinity_with_an_empty_gradient(device: torch.device) -> None:
    x = tracer.track(torch.ones(0, device=device), True)
    out = torch.logsumexp(x, 0)
    out.backward()
    assert out.item() == -math.inf and x.grad.shape == (0,)
