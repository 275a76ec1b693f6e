"""``torch.autograd.Function`` and TorchScript on tracked tensors: their own backward runs, nothing is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import nn
import tracer


class StraightThroughSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -grad * ctx.strength, None


class SumAndProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(
        ctx: Any, by_sum: torch.Tensor, by_product: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        x, y = ctx.saved_tensors
        return (
            by_sum + by_product * y if ctx.needs_input_grad[0] else None,
            by_sum + by_product * x if ctx.needs_input_grad[1] else None,
        )


def leaf(*values: float) -> torch.Tensor:
    return tracer.tensor(values, requires_grad=True)


def test_the_functions_own_backward_runs() -> None:
    x = leaf(-2.0, 3.0)
    (StraightThroughSign.apply(x * 2) * torch.tensor([5.0, 7.0])).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [10.0, 14.0]


def test_arguments_that_are_no_tensors_pass_through() -> None:
    x = leaf(1.0)
    Reversed.apply(x, 3.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [-3.0]


def test_an_apply_bound_before_is_caught_too() -> None:
    reverse = Reversed.apply
    x = leaf(1.0)
    reverse(x, 2.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [-2.0]


def test_several_inputs_and_results() -> None:
    x, y = leaf(2.0), leaf(3.0)
    total, product = SumAndProduct.apply(x, y)
    (total + product * 10).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [31.0] and y.grad is not None and y.grad.tolist() == [21.0]


def test_one_result_used_and_one_input_wanted() -> None:
    x = leaf(2.0)
    _, product = SumAndProduct.apply(x, torch.tensor([3.0]))
    product.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0]


def test_a_native_leaf_beside_a_tracked_one() -> None:
    x, y = leaf(2.0), torch.tensor([3.0], requires_grad=True)
    SumAndProduct.apply(x, y)[1].sum().backward()
    assert y.grad is not None and y.grad.tolist() == [2.0]


def test_the_graph_shows_one_call() -> None:
    with tracer.Graph() as graph:
        y = Reversed.apply(leaf(1.0), 2.0)
    assert graph.counts() == {"torch:Reversed": 1}
    del y


def test_without_a_gradient_nothing_is_recorded() -> None:
    x = leaf(1.0)
    with tracer.Graph() as graph, torch.no_grad():
        Reversed.apply(x, 2.0)
    Reversed.apply(torch.ones(1, requires_grad=True), 2.0).sum().backward()
    assert len(graph) == 0


def test_a_second_derivative_raises() -> None:
    # pytorch/pytorch#58509
    x = leaf(1.0)
    with pytest.raises(tracer.UnsupportedError, match="second derivative through torch:Reversed"):
        torch.autograd.grad(Reversed.apply(x * x, 2.0).sum(), x, create_graph=True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_torchs_checkpoint_gives_the_right_gradients(reentrant: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    data = torch.randn(5, 3)
    grads = []
    for tracked in (True, False):
        twin = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
        twin.load_state_dict(model.state_dict())
        x = tracer.tensor(data, requires_grad=True) if tracked else data.clone().requires_grad_()
        torch.manual_seed(1)
        out = torch.utils.checkpoint.checkpoint(nn.track(twin) if tracked else twin, x * 2, use_reentrant=reentrant)
        out.square().sum().backward()
        grads.append([x.grad, *(p.grad for p in twin.parameters())])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


@torch.jit.script
def scripted(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * x * scale


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_scripted_functions_are_one_opaque_call() -> None:
    x = leaf(2.0)
    with tracer.Graph() as graph:
        y = scripted(x, 3.0)
    assert graph.counts() == {"torch:scripted": 1}
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [12.0]


def test_scripted_modules_are_not_cut() -> None:
    x = leaf(0.5)
    torch.jit.script(Scripted())(x * 2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.tensor([1.0]).cos())
