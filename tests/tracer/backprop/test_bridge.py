"""Tracked tensors beside those of torch's own autograd: no gradient is ever lost."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer


def test_a_native_leaf_is_adopted() -> None:
    x, w = tracer.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
    (x * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [1.0, 2.0] and x.grad is not None and x.grad.tolist() == [3.0, 4.0]


def test_a_native_leaf_is_adopted_by_a_tensor_that_wants_no_gradient() -> None:
    x, w = tracer.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0], requires_grad=True)
    (w * x + w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 3.0]


def test_a_native_leaf_in_a_list_is_adopted() -> None:
    x, w = tracer.tensor([1.0]), torch.tensor([3.0], requires_grad=True)
    (torch.cat([x, w, w]) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [5.0]


def test_hooks_of_an_adopted_leaf_run() -> None:
    x, w = tracer.tensor([2.0]), torch.tensor([3.0], requires_grad=True)
    filled = []
    w.register_hook(lambda g: g * 10)
    w.register_post_accumulate_grad_hook(lambda t: filled.append(t.grad.tolist()))
    (x * w).sum().backward()
    assert filled == [[20.0]]


def test_a_native_history_is_bridged() -> None:
    w, x = torch.tensor([3.0], requires_grad=True), tracer.tensor([2.0], requires_grad=True)
    h = w * w
    (x * h + h).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [18.0] and x.grad is not None and x.grad.tolist() == [9.0]


def test_grad_reaches_native_inputs_behind_a_bridge_and_directly() -> None:
    w, x = torch.tensor([3.0], requires_grad=True), tracer.tensor([2.0], requires_grad=True)
    h = w * w
    gw, gh, gx = torch.autograd.grad((x * h * w).sum(), [w, h, x])
    assert gw.tolist() == [2.0 * 9 * 3] and gh.tolist() == [6.0] and gx.tolist() == [27.0]


def test_a_recorded_backward_into_torchs_history_raises() -> None:
    w, x = torch.tensor([3.0], requires_grad=True), tracer.tensor([2.0], requires_grad=True)
    with pytest.raises(tracer.UnsupportedError, match="create_graph"):
        torch.autograd.grad((x * (w * w)).sum(), w, create_graph=True)


def test_second_derivatives_reach_an_adopted_leaf() -> None:
    w, x = torch.tensor([3.0], requires_grad=True), tracer.tensor([2.0], requires_grad=True)
    (first,) = torch.autograd.grad((x * w * w).sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    assert first.tolist() == [12.0] and second.tolist() == [4.0]


def test_torch_records_nothing_of_what_the_tracer_records() -> None:
    x, w = tracer.tensor([1.0]), torch.tensor([3.0], requires_grad=True)
    y = x * w
    with torch._C.DisableTorchFunctionSubclass():
        assert not torch._C.TensorBase.requires_grad.__get__(y)


def test_a_plain_module_beside_a_tracked_input_gets_its_gradients() -> None:
    layer, twin = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    twin.load_state_dict(layer.state_dict())
    data = torch.randn(4, 3)
    layer(tracer.tensor(data, requires_grad=True)).sum().backward()
    twin(data).sum().backward()
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_copy_of_an_adopted_leaf_gets_its_own_gradient() -> None:
    x, w = tracer.tensor([2.0]), torch.tensor([3.0], requires_grad=True)
    (x * w).sum().backward()
    twin = copy.deepcopy(w)
    w.grad = twin.grad = None
    (x * twin).sum().backward()
    assert twin.grad is not None and twin.grad.tolist() == [2.0] and w.grad is None


def test_an_adopted_leaf_and_a_plain_tensor_with_views_are_saved_as_they_are() -> None:
    x, w, base = tracer.tensor([2.0, 1.0]), torch.tensor([3.0, 1.0], requires_grad=True), torch.zeros(2)
    (x * w).sum().backward()
    base.view_as(x).add_(1)
    for tensor in (w, base):
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        assert torch.load(file).tolist() == tensor.tolist()


def test_an_adopted_leaf_may_change_its_shape() -> None:
    x, w = tracer.tensor([2.0]), torch.tensor([3.0], requires_grad=True)
    (x * w).sum().backward()
    w.data, w.grad = torch.ones(3), None
    (x * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_fault_in_torchs_part_of_a_pass_leaves_tracked_leaves_as_they_were() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("a fault")

    x, w = torch.ones(2, requires_grad=True), tracer.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ArithmeticError, match="a fault"):
        (Failing.apply(x) * w).sum().backward()
    assert w.grad is None and x.grad is None


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeroed": lambda h: h.zero_(),
    "a part": lambda h: h[:1].fill_(5.0),
    "scaled": lambda h: h.mul_(3),
    "detached": lambda h: h.detach_(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_bridge_leads_to_the_history_that_the_tensor_had(write: Callable[[torch.Tensor], Any]) -> None:
    w, x = torch.tensor([3.0, 2.0], requires_grad=True), tracer.tensor([2.0, 4.0])
    h = w * 2
    loss = (x + h).sum()
    write(h)
    (loss + 0 * w.sum()).backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 2.0]
    h = w * 2
    loss = (x + h).sum()
    write(h)
    assert torch.autograd.grad(loss, w)[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["gradient", "filled"])
def test_hooks_of_a_leaf_that_both_reach_see_the_sum_once(kind: str) -> None:
    x, w = tracer.tensor([2.0]), torch.tensor([3.0], requires_grad=True)
    seen: list[Any] = []
    if kind == "gradient":
        w.register_hook(lambda g: seen.append(g.tolist()) or g.clamp(max=5))  # type: ignore[func-returns-value]
    else:
        w.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))  # type: ignore[union-attr]
    (x * w + 2 * (w * w)).sum().backward()
    assert seen == [[14.0]] and w.grad is not None and w.grad.tolist() == ([5.0] if kind == "gradient" else [14.0])
    if kind == "gradient":
        assert torch.autograd.grad((x * w + 2 * (w * w)).sum(), w)[0].tolist() == [5.0]
