"""A leaf that is tracked in place after torch has recorded a use of it: its gradient arrives, or there is an error, never silence."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nn
import tracer
from tracer.tracked_tensor import track_in_place

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: dict[str, Loss] = {
    "recorded by torch alone": lambda use, leaf: use.sum(),
    "the leaf used again since": lambda use, leaf: (use * leaf).sum(),
    "beside the leaf": lambda use, leaf: use.sum() + (0 * leaf).sum(),
    "far behind the root": lambda use, leaf: use.exp().sin().view(3, 1).sum(),
}
WAYS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "backward": lambda loss, leaf: loss.backward(),
    "backward for it": lambda loss, leaf: loss.backward(inputs=[leaf]),
    "grad": lambda loss, leaf: torch.autograd.grad(loss, leaf),
    "grad, unused allowed": lambda loss, leaf: torch.autograd.grad(loss, leaf, allow_unused=True),
}


def used_then_tracked() -> tuple[torch.nn.Parameter, torch.Tensor]:
    leaf = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    use = leaf * 2
    track_in_place(leaf)
    return leaf, use


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_backward_to_a_use_from_before_raises(loss: Loss, way: Callable[[torch.Tensor, Any], Any]) -> None:
    leaf, use = used_then_tracked()
    with pytest.raises(
        tracer.UnsupportedError, match=r"shape \(3,\) was used before it was tracked.*before the forward"
    ):
        way(loss(use, leaf), leaf)
    assert leaf.grad is None


def test_nothing_is_filled_beside_it() -> None:
    _leaf, use = used_then_tracked()
    other = tracer.tensor([1.0, 1.0, 1.0], requires_grad=True)
    with pytest.raises(tracer.UnsupportedError):
        (use * other).sum().backward()
    assert other.grad is None


def test_the_module_of_a_pending_loss_raises_at_backward() -> None:
    model = torch.nn.Linear(3, 2)
    loss = model(torch.ones(3)).sum()
    nn.track(model)
    with pytest.raises(tracer.UnsupportedError, match=r"nn\.track"):
        loss.backward()


def test_a_loss_that_is_over_does_not_stand_in_the_way() -> None:
    model = torch.nn.Linear(3, 2)
    loss = model(torch.ones(3)).sum()
    loss.backward()
    nn.track(model)
    model(torch.ones(3)).sum().backward()
    assert model.weight.grad is not None and bool((model.weight.grad == 2).all())


def test_a_use_whose_history_is_gone_does_not_stand_in_the_way() -> None:
    leaf, use = used_then_tracked()
    del use
    (leaf * 3).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [3, 3, 3]


def test_gradients_of_other_native_leaves_pass() -> None:
    _leaf, use = used_then_tracked()
    other, tracked = torch.ones(3, requires_grad=True), tracer.tensor([1.0, 1.0, 2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad((use * other * tracked).sum(), other)
    assert gradient.tolist() == [2, 4, 12]


def test_a_leaf_that_is_frozen_since_is_passed_over_as_in_torch() -> None:
    leaf, use = used_then_tracked()
    leaf.requires_grad_(False)
    other = torch.ones(3, requires_grad=True)
    (use * other).sum().backward()
    assert leaf.grad is None and other.grad is not None


def test_the_leaf_is_not_kept_alive() -> None:
    leaf, use = used_then_tracked()
    known = weakref.ref(leaf)
    del leaf, use
    gc.collect()
    assert known() is None
