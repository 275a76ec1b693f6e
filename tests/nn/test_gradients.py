"""``nn.zero_grad``."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import nn
import tracer


def leaf_after_backward() -> tracer.Tensor:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    x.sum().backward()
    return x


TARGETS = {
    "tensor": lambda x, m: [x, m],
    "tuple": lambda x, m: (x, m),
    "nested": lambda x, m: {"a": [x], "b": {"c": (m,)}},
    "generator": lambda x, m: (t for t in (x, *m.parameters())),
    "optimiser": lambda x, m: torch.optim.SGD([x, *m.parameters()], lr=0.1),
    "set": lambda x, m: {x, m},
}


@pytest.mark.parametrize("make", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_everything_that_holds_tensors(make: Any, set_to_none: bool) -> None:
    x, model = leaf_after_backward(), nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    gradients = [t.grad for t in (x, *model.parameters())]
    nn.zero_grad(make(x, model), set_to_none)
    for tensor, gradient in zip((x, *model.parameters()), gradients, strict=True):
        if set_to_none:
            assert tensor.grad is None
        else:
            assert tensor.grad is gradient and not gradient.any()


def test_native_tensors_and_those_without_a_gradient() -> None:
    native = torch.ones(2, requires_grad=True)
    native.sum().backward()
    nn.zero_grad([native, torch.ones(1), tracer.tensor([1.0], requires_grad=True)])
    assert native.grad is None


def test_the_history_of_a_gradient_goes() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    (x**3).sum().backward(create_graph=True)
    nn.zero_grad(x, set_to_none=False)
    assert x.grad is not None and not x.grad.requires_grad and not x.grad.any()


def test_retained_gradients_are_cleared_and_others_not_asked_for() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    y, z = x * 2, x * 3
    y.retain_grad()
    (y + z).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.zero_grad([x, y, z])
    assert x.grad is None and y.grad is None


@pytest.mark.parametrize("target", [3, "weights", None, [1.0]])
def test_what_holds_no_tensors_is_refused(target: Any) -> None:
    with pytest.raises(nn.ArgumentError, match="tensors, modules, optimisers"):
        nn.zero_grad(target)


def test_a_tracked_tensor_clears_its_own() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    (x * 3).sum().backward()
    kept = x.grad
    x.zero_grad(set_to_none=False)
    assert x.grad is kept and x.grad.tolist() == [0.0]
    x.zero_grad()
    assert x.grad is None
