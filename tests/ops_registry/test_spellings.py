"""Arguments and spellings of ops, as torch takes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tracer
from ops_registry.spellings import ALIASES, spellings

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "axis for dim": lambda x: x.sum(axis=1),
    "keepdims for keepdim": lambda x: x.sum(1, keepdims=True),
    "sizes as arguments": lambda x: x.view(3, 2).permute(1, 0).reshape(6, 1).expand(6, 2),
    "sizes as a list": lambda x: x.view([3, 2]).permute((1, 0)).reshape([6, 1]).expand([6, 2]),
    "size by name": lambda x: x.reshape(shape=(3, 2)),
    "alpha": lambda x: torch.add(x, x * x, alpha=3),
    "rounding mode": lambda x: torch.div(x, 0.3, rounding_mode=None),
    "input by name": lambda x: torch.mul(other=x, input=x * x),
    "where as a method": lambda x: x.where(x > 0, x * x),
    "var with a bool": lambda x: x.var(False),
    "var with dimensions": lambda x: x.var(1, False, True),
    "var with a correction": lambda x: x.var(dim=1, correction=0),
    "max of all": lambda x: x.max(),
    "max of a dimension": lambda x: x.max(1).values,
    "max of two": lambda x: torch.max(x, x * x),
    "dim by name": lambda x: torch.max(x, dim=1, keepdim=True)[0],
    "packet": lambda x: torch.ops.aten.sum(x, [1]),
    "overload": lambda x: torch.ops.aten.sum.dim_IntList(x, [1], True),
    "alias": lambda x: torch.multiply(x, x) + torch.subtract(x, 1) + torch.special.expit(x) + torch.absolute(x),
    "augmented operators": lambda x: augmented(x),
}


def augmented(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y += x
    y -= 2
    y *= x
    y /= 3
    y **= 2
    return y


@pytest.mark.parametrize("name", CALLS)
def test_gradients_equal_torchs(name: str) -> None:
    data = torch.linspace(-1, 1.5, 6, dtype=torch.float64).view(2, 3)
    x, native = tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()
    out, expected = CALLS[name](x), CALLS[name](native)
    torch.testing.assert_close(out.detach().as_subclass(torch.Tensor), expected.detach())
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), x), torch.autograd.grad(expected.square().sum(), native)
    )


@pytest.mark.parametrize("name", sorted(n for n, aliases in ALIASES.items() if aliases and hasattr(torch, n)))
def test_aliases_are_spellings(name: str) -> None:
    found = spellings(getattr(torch, name))
    for alias in ALIASES[name]:
        for namespace in (torch, torch.Tensor):
            spelled = getattr(namespace, alias, None)
            if callable(spelled):
                assert spelled in found
