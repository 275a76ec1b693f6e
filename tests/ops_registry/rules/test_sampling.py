"""Rules of ``ops_registry/rules/sampling.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, plain, rand, run_case
from support.overwriting import filled

import tracer
from tracer.errors import MissingRuleError

UP = {"low": 0.1, "high": 12.0}

RANDOM = {
    "normal_": (),
    "uniform_": (),
    "random_": (5,),
    "cauchy_": (),
    "exponential_": (),
    "geometric_": (0.3,),
    "log_normal_": (),
}

# Which draw is accepted jumps with the parameter, so no differences; neither torch nor we have the second derivative.
CASES = [
    case("_standard_gamma", torch._standard_gamma, rand(3, 4, **UP), differences=False, second=False),
    case("_standard_gamma", torch._standard_gamma, rand(0, 4), differences=False, second=False, label="empty"),
    case("_standard_gamma", torch._standard_gamma, rand(**UP), differences=False, second=False, label="0-d"),
    case(
        "_standard_gamma",
        lambda a: torch._standard_gamma(a.expand(3, 4)),
        rand(4, **UP),
        differences=False,
        second=False,
        label="expanded",
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
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Chi2", "StudentT", "Dirichlet", "FisherSnedecor", "InverseGamma"])
def test_draws_of_a_distribution_move_with_its_parameters_as_in_torch(name: str, device: torch.device) -> None:
    one = name in ("Chi2", "StudentT", "Dirichlet")
    grads = []
    for track in (True, False):
        data = [rand(3, 4, seed=i, **UP)(device) for i in range(1 if one else 2)]
        leaves = [tracer.track(d, True) if track else d.requires_grad_() for d in data]
        torch.manual_seed(0)
        getattr(torch.distributions, name)(*leaves).rsample((2,)).square().sum().backward()
        grads.append([plain(leaf.grad) for leaf in leaves])
    torch.testing.assert_close(*grads)


def test_second_derivative_of_a_draw_is_refused(device: torch.device) -> None:
    a = tracer.track(rand(3, **UP)(device), True)
    (first,) = torch.autograd.grad(torch._standard_gamma(a).sum(), a, create_graph=True)
    with pytest.raises(MissingRuleError, match="_standard_gamma_grad"):
        first.sum().backward()


def test_a_drawn_number_requires_grad_as_in_torch() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    drawn = torch.normal(x, 1.0)
    assert drawn.requires_grad
    drawn.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0]
