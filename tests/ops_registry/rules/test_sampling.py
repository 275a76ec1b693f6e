"""Rules of ``ops_registry/rules/sampling.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, plain, rand, run_case

import tracer
from tracer.errors import MissingRuleError

UP = {"low": 0.1, "high": 12.0}

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
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch(c: Case, device: torch.device) -> None:
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
