"""Rules of ``ops_registry/rules/filling.py``: what was there before has no influence any more."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, rand, run_case

import tracer


def filled(name: str, *args: object):
    """An op that overwrites a copy of its input, beside a term that keeps the input in the result."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        getattr(y, name)(*args)
        return y * x

    return run


RANDOM = {
    "normal_": (),
    "uniform_": (),
    "random_": (5,),
    "cauchy_": (),
    "exponential_": (),
    "geometric_": (0.3,),
    "log_normal_": (),
}

CASES = [
    case("zero_", filled("zero_"), rand(3, 4)),
    case("fill", filled("fill_", 3.0), rand(3, 4), label="number"),
    case("fill", lambda x, v: (x * 2).fill_(v * v) * x, rand(3, 4), rand(), label="tensor"),
    case("fill", lambda x, v: (x * 2).fill_(v) * x, rand(0, 4), rand(), label="empty"),
    case("fill", lambda x, v: torch.fill(x * 2, v) * x, rand(3, 4), rand(), label="out-of-place"),
    case("zero_", lambda x: torch.zero_(x * 2) * x, rand(3, 4), label="function"),
    case("copy_", lambda x, v: (x * 2).copy_(v * v) * x, rand(3, 4), rand(3, 4)),
    case("copy_", lambda x, v: (x * 2).copy_(v * v) * x, rand(3, 4), rand(4), label="broadcast"),
    case(
        "copy_",
        lambda x, v: (x * 2).copy_(v) * x,
        rand(3),
        rand(3, dtype=torch.float32),
        label="dtype",
        differences=False,
        rtol=1e-6,
    ),
    case(
        "copy_",
        lambda x, v: ((x * 2).copy_(v) * x).abs(),
        rand(3, dtype=torch.complex128),
        rand(3),
        label="real-into-complex",
    ),
    *(case(name, filled(name, *args), rand(3, 4)) for name, args in RANDOM.items()),
    # Not the derivative of mean + std z: torch takes what it draws for a constant.
    case("normal", lambda m, s: torch.normal(m, s) * s, rand(3, 4), rand(4, low=0.1), differences=False),
    case("normal", lambda m: torch.normal(m, 2.0) * m, rand(3, 4), differences=False, label="number-std"),
    case("normal", lambda s: torch.normal(1.0, std=s) * s, rand(3, low=0.1), differences=False, label="number-mean"),
    case("normal", lambda m: torch.normal(mean=m) * m, rand(0, 3), differences=False, label="empty"),
    case("bernoulli", lambda x: torch.bernoulli(x) * x, rand(3, 4, low=0.1, high=0.9), differences=False),
    case("bernoulli", filled("bernoulli_", 0.4), rand(3, 4), label="in-place"),
    case(
        "bernoulli",
        lambda x, p: (x * 2).bernoulli_(p) * x * p,
        rand(3, 4),
        rand(3, 4, low=0.1, high=0.9, seed=1),
        label="tensor",
        differences=False,
    ),
    case("poisson", lambda x: torch.poisson(x) * x, rand(3, 4, low=0.1), differences=False),
    case("fill_diagonal_", filled("fill_diagonal_", 3.0), rand(3, 4)),
    case("fill_diagonal_", filled("fill_diagonal_", 3.0, True), rand(7, 2), label="wrap"),
    case("fill_diagonal_", lambda x: (x * 2).fill_diagonal_(1.0, wrap=True) * x, rand(7, 2), label="keyword"),
    case("fill_diagonal_", filled("fill_diagonal_", 3.0), rand(2, 2, 2), label="rank-3"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_a_plain_tensor_becomes_tracked_by_a_copy_into_it() -> None:
    x, out = tracer.tensor([1.0, 2.0], requires_grad=True), torch.zeros(2)
    out.copy_(x * 3)
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]


def test_initialisers_of_torch_write_leaves() -> None:
    x = tracer.tensor(torch.zeros(20, 20), requires_grad=True)
    torch.nn.init.kaiming_uniform_(x)
    torch.nn.init.constant_(x, 2.0)
    assert x.is_leaf and x.requires_grad and (x == 2).all()


def test_a_drawn_number_requires_grad_as_in_torch() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    drawn = torch.normal(x, 1.0)
    assert drawn.requires_grad
    drawn.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0]
