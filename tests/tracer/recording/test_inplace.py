"""In-place writes: right where they are supported, a clear error where they are not, never a silent wrong number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tracer

Program = Callable[[torch.Tensor], torch.Tensor]


def augmented(x: torch.Tensor) -> torch.Tensor:
    # pytorch/pytorch#8874
    y = x.exp()
    z = y * 3
    z += y
    return z


def product(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y *= x
    y.mul_(x)
    return y


def item_write(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0] = 5.0
    return y * x


def item_write_of_a_tracked_value(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[1] = (x * x).sum()
    return y


def masked_write(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y[x > 1.5] = 0
    return y


def buffer(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(3, 3, dtype=x.dtype)
    for i in range(3):
        out[i] = x * (i + 1)
    return out * out


def relu_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x - 1.5
    F.relu(y, inplace=True)
    return y * x


def zeroed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.zero_()
    return y + x


def double_use_then_write(x: torch.Tensor) -> torch.Tensor:
    # rsokl/MyGrad#93, rsokl/MyGrad#98
    y = x * 1
    z = y + y
    y[0] = 5.0
    return z + y


def broadcast_value(x: torch.Tensor) -> torch.Tensor:
    y = torch.ones(2, 3, dtype=x.dtype) * x
    y[:] = x * x
    return y


PROGRAMS: list[Program] = [
    augmented,
    product,
    item_write,
    item_write_of_a_tracked_value,
    masked_write,
    buffer,
    relu_in_place,
    zeroed,
    double_use_then_write,
    broadcast_value,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values_gradients_and_second_derivatives_equal_torchs(program: Program) -> None:
    data = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    found = []
    for x in (tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()):
        y = program(x)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), x)
        found.append((y.tolist(), first.tolist(), second.tolist()))
    assert found[0] == found[1]


def test_a_write_returns_the_tensor_itself() -> None:
    y = tracer.tensor([1.0], requires_grad=True) * 2
    assert y.add_(1) is y


def test_a_plain_buffer_becomes_tracked_when_a_tracked_value_is_written_into_it() -> None:
    x, out = tracer.tensor([1.0], requires_grad=True), torch.zeros(2)
    out[0] = x[0]
    assert type(out) is tracer.Tensor and out.requires_grad


def test_a_write_without_any_gradient_records_nothing() -> None:
    x, out = tracer.tensor([1.0]), torch.zeros(1)
    with tracer.Graph() as graph:
        out.add_(x)
    assert len(graph) == 0 and out.tolist() == [1.0] and type(out) is torch.Tensor


def test_tracked_values_are_not_written_into_a_history_of_torchs_own() -> None:
    x, out = tracer.tensor([1.0], requires_grad=True), torch.zeros(1, requires_grad=True) * 2
    with pytest.raises(tracer.UnsupportedError, match="history in torch's own autograd"):
        out.add_(x)


def test_optimisers_write_leaves_under_no_grad() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with torch.no_grad():
        x -= 0.5
    assert x.item() == 0.5 and x.is_leaf and x.requires_grad


def test_overwriting_what_no_rule_saved_is_fine() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    z = y + 1
    y.zero_()
    z.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def test_overwriting_what_a_rule_saved_is_fine_where_its_gradient_is_zero() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    y = x * 1
    z = y.sin().round()  # nothing flows through round, so the rule of sin is not asked
    y.zero_()
    z.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0]


def test_overwriting_another_region_of_what_a_rule_saved_raises_as_in_torch() -> None:
    # pytorch/pytorch#114505
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    y = x.clone()
    y[0] = y[1].sin()
    with pytest.raises(tracer.OverwrittenError, match="sin"):
        y.sum().backward()


def test_retain_grad_follows_the_tensor_through_a_write() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * 5).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [5.0]


@pytest.mark.parametrize("shown", [False, True])
def test_a_write_is_recorded_alike_whether_or_not_a_view_shows_the_memory(shown: bool) -> None:
    values = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    ours, theirs = tracer.tensor(values, requires_grad=True), values.clone().requires_grad_()
    for x in (ours, theirs):
        y = x + 1
        view = y.view(3) if shown else None
        y.mul_(x)
        y[y > 3] = (x * x).sum()
        y.mul_(0.1).exp_()
        (y * x).sum().backward()
        assert view is None or view.requires_grad
    torch.testing.assert_close(ours.grad, theirs.grad)
    for x in (ours, theirs):
        y = x + 1
        view = y.view(3) if shown else None
        y.mul_(y.detach())  # saved, and then overwritten
        with pytest.raises(RuntimeError, match=r"overwritten in place by mul_|modified by an inplace operation"):
            y.sum().backward()
