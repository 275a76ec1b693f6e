"""Filling ``.grad``: added to what is there, in memory that nobody else knows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.leaves import leaf
from torch.profiler import ProfilerActivity, profile

import tracer


def test_a_second_backward_adds_the_same_amount() -> None:
    # karpathy/micrograd#102, pytorch/pytorch#6959
    x = leaf(2.0)
    y = x * x
    z = (y * y).sum()
    z.backward(retain_graph=True)
    first = x.grad.clone()
    z.backward()
    assert first.tolist() == [32.0] and x.grad.tolist() == [64.0]


def test_gradients_of_two_leaves_fed_by_one_do_not_share_memory() -> None:
    # pytorch/pytorch#34082
    x, y, seed = leaf(1.0, 2.0), leaf(3.0, 4.0), torch.ones(2, dtype=torch.float64)
    (x + y).backward(seed)
    x.grad.mul_(10)
    assert x.grad.tolist() == [10, 10] and y.grad.tolist() == [1, 1] and seed.tolist() == [1, 1]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_grad_that_nothing_can_be_added_to_raises_before_any_is_changed(compiled: bool) -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    x.grad, y.grad = torch.ones(2, dtype=torch.float64), torch.ones(1, dtype=torch.float64).expand(2)

    def step() -> None:
        ((x * y).sum() + 0 * x.sum()).backward()

    call = tracer.compile(lambda x, y: step(), backend="replay") if compiled else lambda x, y: step()
    with pytest.raises(tracer.InPlaceError, match=r"\.grad of a leaf of shape \(2,\).*none was.*x\.grad\.clone\(\)"):
        call(x, y)
    assert x.grad.tolist() == [1, 1] and y.grad.tolist() == [1, 1]
    y.grad = y.grad.clone()
    call(x, y)
    assert x.grad.tolist() == [4, 5] and y.grad.tolist() == [2, 3]


def test_gradient_through_views_does_not_share_memory() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    z = x.view(1, 2) + y
    z.backward(torch.ones(1, 2, dtype=torch.float64))
    x.grad.mul_(10)
    assert y.grad.tolist() == [1, 1]


@pytest.mark.parametrize(
    "kept",
    [
        lambda g: g,
        lambda g: g[:1],
        lambda g: g.detach(),
        lambda g: g.numpy(),
        lambda g: g.untyped_storage(),
        torch.utils.dlpack.to_dlpack,
    ],
    ids=["itself", "a view", "an alias", "numpy", "storage", "dlpack"],
)
@pytest.mark.parametrize("viewed", [False, True])
def test_a_gradient_that_somebody_holds_does_not_grow(kept: Callable[[torch.Tensor], Any], viewed: bool) -> None:
    x, seen = leaf(1.0, 2.0), []
    y = x * 1
    other = y * 5
    passed_on = y.view(1, 2) if viewed else y + 0.0  # hands on a view of the gradient that it was given, or that itself
    passed_on.register_hook(lambda g: seen.append(kept(g)))
    (other + passed_on * 3).sum().backward()
    found = seen[0]
    if isinstance(found, torch.UntypedStorage):
        found = torch.tensor([], dtype=torch.float64).set_(found)
    elif not hasattr(found, "shape"):
        found = torch.utils.dlpack.from_dlpack(found)
    assert set(np.ravel(found.tolist())) == {3.0}
    assert x.grad.tolist() == [8.0, 8.0]


def test_the_gradient_that_the_user_gave_does_not_grow() -> None:
    x = leaf(1.0, 2.0)
    seed = torch.ones(2, dtype=torch.float64)
    y = x * 1
    torch.autograd.backward([y * 2, y + 0.0], [torch.ones_like(seed), seed])
    assert seed.tolist() == [1.0, 1.0] and x.grad.tolist() == [3.0, 3.0]


def test_a_gradient_whose_elements_share_memory_does_not_grow() -> None:
    class Spread(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return torch.ones(1, dtype=grad.dtype).expand(3).detach()  # the one owner of that memory

    x = leaf(1.0, 2.0, 3.0)
    y = x * 1
    (y * 2).sum().add(Spread.apply(y).sum()).backward()
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("viewed", [False, True])
def test_the_sum_of_two_large_gradients_takes_no_third_buffer(viewed: bool) -> None:
    x = leaf(*range(100_000))
    y = x * 1
    parts = (y.view(10, -1) * 2, y.view(10, -1) * 3) if viewed else (y[1:], y[:-1])
    loss = parts[0].sum() + parts[1].sum()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        torch.autograd.grad(loss, y)
    assert peak_of(profiled) < 2.5 * 8 * 100_000


def peak_of(profiled: Any) -> int:
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def test_rows_of_a_sparse_gradient_are_added_to_one_in_another_order() -> None:
    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad.to_sparse_csr()

    x = tracer.tensor(torch.zeros(2, 3), requires_grad=True)
    y = x * 1
    rows = Rows.apply(y)  # made first: its gradient comes last
    ((y.t() * 2).sum() + (y.t() * 3).sum() + rows.sum()).backward()
    assert x.grad.tolist() == [[6.0] * 3] * 2


def test_hooks_that_stash_the_gradient_do_not_share_memory_with_grad() -> None:
    x, seen = leaf(1.0), []
    x.register_hook(lambda g: seen.append(g))
    (x * 2).backward()
    x.grad.zero_()
    assert seen[0].tolist() == [2.0]


def test_create_graph_in_backward_makes_grad_differentiable() -> None:
    x = leaf(2.0)
    (x**3).backward(create_graph=True)
    (second,) = torch.autograd.grad(x.grad, x)
    assert second.item() == 12.0
    x.grad = None


def test_gradients_are_plain_without_create_graph() -> None:
    x = leaf(1.0)
    (x * 2).backward()
    assert type(x.grad) is torch.Tensor and not x.grad.requires_grad


def test_grad_has_the_layout_of_a_transposed_leaf() -> None:
    data = torch.randn(3, 4, dtype=torch.float64).t()
    x, native = tracer.track(data, True), data.clone(memory_format=torch.preserve_format).requires_grad_()
    (x * 2).sum().backward()
    (native * 2).sum().backward()
    assert x.grad.stride() == native.grad.stride()


def test_a_gradient_is_added_in_place_to_what_is_there() -> None:
    # optimisers and data-parallel buckets hold on to the tensor
    x = leaf(1.0, 2.0)
    x.grad = before = torch.full((2,), 10.0, dtype=torch.float64)
    (x * 2).sum().backward()
    assert x.grad is before and before.tolist() == [12.0, 12.0]


def test_a_recorded_gradient_leaves_what_is_there_unchanged() -> None:
    x = leaf(1.0, 2.0)
    x.grad = before = torch.full((2,), 10.0, dtype=torch.float64)
    (x * x).sum().backward(create_graph=True)
    assert before.tolist() == [10.0, 10.0] and x.grad.tolist() == [12.0, 14.0]
    x.grad = None


def test_an_expanded_gradient_gets_memory_of_its_own() -> None:
    x = leaf(1.0, 2.0)
    x.sum().backward()
    x.grad[0] = 5.0
    assert x.grad.tolist() == [5.0, 1.0]


def test_grad_has_the_memory_format_of_its_leaf() -> None:
    data = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    x, native = tracer.track(data, True), data.clone(memory_format=torch.preserve_format).requires_grad_()
    for image in (x, native):
        (image.contiguous() * 2).sum().backward()
    assert x.grad.stride() == native.grad.stride() == data.stride()
