"""``torch.utils.swap_tensors`` of tracked tensors, and the module conversions that go by it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.leaves import leaf32

import nn
import tracer

swap = torch.utils.swap_tensors


@pytest.fixture
def swapping_modules() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def test_gradients_follow_the_content() -> None:
    a, b = leaf32(1.0, 2.0), leaf32(3.0)
    swap(a, b)
    assert (a.tolist(), b.tolist()) == ([3.0], [1.0, 2.0])
    (a.pow(2).sum() + b.pow(3).sum()).backward()
    assert a.grad is not None and a.grad.tolist() == [6.0]
    assert b.grad is not None and b.grad.tolist() == [3.0, 12.0]


def test_grad_attributes_and_hooks_are_swapped_too() -> None:
    a, b = leaf32(1.0, 2.0), leaf32(3.0)
    seen: list[Any] = []
    a.sum().backward()
    handle = a.register_hook(lambda g: seen.append(("a", tuple(g.shape))))
    b.register_post_accumulate_grad_hook(lambda p: seen.append(("b", p is a)))
    swap(a, b)
    assert a.grad is None and b.grad is not None
    a.sum().backward()
    b.sum().backward()
    handle.remove()
    b.sum().backward()
    assert seen == [("b", True), ("a", (2,))]


def test_a_leaf_and_a_plain_tensor() -> None:
    a, b = leaf32(1.0), torch.tensor([2.0])
    swap(a, b)
    assert type(b) is tracer.Tensor and b.requires_grad and type(a) is torch.Tensor
    (b * 3).sum().backward()
    assert b.grad is not None and b.grad.tolist() == [3.0]


def test_native_leaves_that_have_met_tracked_tensors() -> None:
    a, b = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    w = leaf32(2.0)
    (a * w).sum().backward()
    swap(a, b)
    (a * w).sum().backward()
    assert a.grad is not None and a.grad.tolist() == [2.0]
    assert b.grad is not None and b.grad.tolist() == [2.0, 2.0]


def test_backward_through_an_older_graph_raises() -> None:
    a, b = leaf32(1.0), leaf32(3.0)
    y = (a * 2).sum() + 0 * b.sum()
    swap(a, b)
    with pytest.raises(tracer.UnsupportedError, match=r"swap_tensors\(\) has given away.*before the forward pass"):
        y.backward()
    assert a.grad is None and b.grad is None


def test_what_torch_refuses_is_refused_and_leaves_the_tensors_as_they_were() -> None:
    a, b = leaf32(1.0), leaf32(3.0)
    reference = weakref.ref(a)
    with pytest.raises(RuntimeError, match="weakref"):
        swap(a, b)
    assert reference() is a
    (a * 2 + b).sum().backward()
    assert a.grad is not None and b.grad is not None and (a.grad.item(), b.grad.item()) == (2.0, 1.0)


def test_views_and_retained_gradients_are_refused() -> None:
    x = leaf32(1.0, 2.0) * 1
    with pytest.raises(tracer.UnsupportedError, match=r"is a view of another.*Swap clones"):
        swap(x[:1], leaf32(1.0))
    x.retain_grad()
    with pytest.raises(tracer.UnsupportedError, match="retains its grad"):
        swap(leaf32(1.0), x)


@pytest.mark.usefixtures("swapping_modules")
def test_modules_convert_their_parameters_in_place() -> None:
    grads = []
    for track in (lambda m: m, nn.track):
        torch.manual_seed(0)
        model = track(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        seen: list[torch.dtype] = []
        parameters[0].register_hook(lambda g, seen=seen: seen.append(g.dtype))
        model(torch.arange(6.0).view(2, 3)).pow(2).sum().backward()
        model.double()
        assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
        assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in parameters)
        optimizer.zero_grad()
        model(torch.arange(6.0, dtype=torch.float64).view(2, 3)).pow(2).sum().backward()
        optimizer.step()
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        model(torch.arange(6.0, dtype=torch.float64).view(2, 3)).pow(2).sum().backward()
        grads.append([p.grad for p in model.parameters()])
        assert seen == [torch.float32]  # as in torch a hook goes with the old content
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.usefixtures("swapping_modules")
def test_recurrent_modules_and_tied_parameters() -> None:
    lstm = nn.track(torch.nn.LSTM(3, 2)).double()
    lstm(torch.ones(1, 1, 3, dtype=torch.float64))[0].sum().backward()
    assert lstm.weight_ih_l0.grad.dtype is torch.float64
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    nn.track(tied).double()
    tied(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    assert tied[1].weight is tied[0].weight and tied[0].weight.grad is not None


@pytest.mark.usefixtures("swapping_modules")
def test_a_conversion_between_forward_and_backward_raises() -> None:
    model = nn.track(torch.nn.Linear(3, 2))
    y = model(torch.ones(1, 3)).sum()
    model.double()
    with pytest.raises(tracer.UnsupportedError, match=r"set_swap_module_params_on_conversion"):
        y.backward()
