"""``--track``: what becomes tracked, what is left to torch, and that no gradient is lost either way."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import tracer
from tracer.commands.tracking import Tracking


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.tensor([1.0, 2.0], requires_grad=True),
        lambda: torch.zeros(3).requires_grad_(),
        lambda: torch.zeros_like(torch.ones(2), requires_grad=True),
        lambda: torch.nn.Linear(2, 2).weight,
        lambda: torch.nn.BatchNorm1d(2).bias,
        lambda: torch.nn.ParameterList([torch.zeros(2)])[0],
        lambda: copy.deepcopy(torch.nn.Linear(2, 2)).bias,
    ],
)
def test_leaves_become_tracked_as_they_are_made(make: Callable[[], torch.Tensor]) -> None:
    with Tracking():
        leaf = make()
    assert type(leaf) is tracer.Tensor and leaf.is_leaf and leaf.requires_grad


def test_a_leaf_that_is_turned_on_stays_the_same_object() -> None:
    with Tracking():
        x = torch.ones(2)
        held = [x]
        x.requires_grad = True
    assert held[0] is x and type(x) is tracer.Tensor


def test_a_lazy_parameter_is_tracked_once_it_has_a_shape() -> None:
    with Tracking():
        layer = torch.nn.LazyLinear(2)
        layer(torch.ones(1, 3))
    assert type(layer.weight) is tracer.Tensor and layer.weight.shape == (2, 3)


def test_data_and_buffers_stay_plain() -> None:
    with Tracking():
        assert type(torch.ones(2) + 1) is torch.Tensor
        assert type(torch.nn.BatchNorm1d(2).running_mean) is torch.Tensor


def test_calls_on_a_leaf_that_was_made_before_are_recorded() -> None:
    w = torch.ones(3, requires_grad=True)
    with Tracking(), tracer.Graph() as graph:
        loss = (w * torch.nn.functional.relu(w)).sum() + w.unflatten(0, (3, 1)).norm()
        loss.backward()
    assert type(w) is torch.Tensor and w.grad is not None
    torch.testing.assert_close(w.grad, torch.full((3,), 2 + 3**-0.5))
    assert set(graph.counts()) == {"relu", "mul", "sum", "unflatten", "linalg_vector_norm", "add"}


def test_functions_written_in_python_are_recorded_by_their_parts() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(4, requires_grad=True) for _ in range(2)]
    with Tracking():
        found = (
            torch.nn.functional.cosine_similarity(*weights, dim=0)
            + torch.nn.functional.normalize(weights[0], dim=0).sum()
        )
        found = (
            found
            + torch.einsum("i,i", weights)
            + torch.nn.functional.multi_margin_loss(weights[0][None], torch.tensor([1]))
        )
    assert type(found) is tracer.Tensor


@pytest.mark.parametrize("first", ["function", "mul"])
def test_no_gradient_is_lost_where_torch_has_recorded_a_use_of_the_leaf_already(first: str) -> None:
    """A custom Function does not pass through the mode: on a leaf that nothing has tracked it is torch's own."""

    def gradient() -> torch.Tensor:
        w = torch.nn.Parameter(torch.tensor([1.0, 3.0]))
        uses = [lambda: Square.apply(w).sum(), lambda: (3 * w).sum()]
        terms = [use() for use in (uses if first == "function" else reversed(uses))]
        w.requires_grad_()  # it is on already, and torch has a record of it
        sum(terms).backward()
        assert w.grad is not None
        return w.grad

    with Tracking():
        found = gradient()
    assert torch.equal(found, gradient())


@pytest.mark.parametrize(
    "run",
    [
        lambda w: torch.func.grad(lambda x: (x * w).sin().sum())(torch.ones(3)),
        lambda w: torch.func.vmap(torch.func.grad(lambda x: (x * w).sin().sum()))(torch.ones(4, 3)),
        lambda w: torch.func.jacrev(lambda x: x * x)(torch.ones(3)),
        lambda w: torch.autograd.functional.jacobian(lambda x: (x * w).sin(), torch.ones(3)),
        lambda w: torch.jit.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))(torch.ones(1, 3)),
        lambda w: torch.jit.script(torch.nn.Linear(3, 2))(torch.ones(1, 3)),
        lambda w: torch.fx.symbolic_trace(torch.nn.Linear(3, 2))(torch.ones(1, 3)),
        lambda w: torch.nn.MultiheadAttention(4, 2)(*[torch.ones(2, 1, 4)] * 3)[0],
    ],
    ids=["grad", "vmap", "jacrev", "jacobian", "trace", "script", "fx", "attention"],
)
def test_what_torch_transforms_or_traces_gives_the_same(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def values() -> torch.Tensor:
        torch.manual_seed(0)
        return run(torch.full((3,), 2.0, requires_grad=True))

    with Tracking():
        found = values()
    expected = values()
    torch.testing.assert_close(found.detach().as_subclass(torch.Tensor), expected.detach())
    assert found.requires_grad == expected.requires_grad


def test_nothing_is_tracked_any_more_afterwards() -> None:
    with Tracking():
        pass
    assert type(torch.ones(2, requires_grad=True)) is torch.Tensor
    assert type(torch.nn.Linear(2, 2).weight) is torch.nn.Parameter
