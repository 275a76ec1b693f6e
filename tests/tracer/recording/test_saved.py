"""Which tensors a call saves for backward, and that they are what they were."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from support.leaves import leaf
from support.memory import no_collector

import tracer

CONSTANT = torch.ones(2, dtype=torch.float64)

#: A call on a leaf of two float64 elements, and how many bytes it saves.
SAVED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "a sum saves nothing": (lambda x: x + CONSTANT, 0),
    "a view saves nothing": (lambda x: x.view(1, 2), 0),
    "a number is no tensor": (lambda x: x * 3, 0),
    "the constant side of a product": (lambda x: x * CONSTANT, 16),
    "a square, once": (lambda x: x * x, 16),
    "the result": (lambda x: x.exp(), 16),
    "the input": (lambda x: x.sin(), 16),
    "a mask of a byte an element": (lambda x: x.masked_fill(torch.tensor([True, False]), 0.0), 2),
    "a list saves nothing of its tensors": (lambda x: torch.cat([x, x]), 0),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_call_saves_what_its_rule_names(name: str) -> None:
    call, size = SAVED[name]
    x = leaf(1.0, 2.0)
    with tracer.Graph() as graph:
        y = call(x)
    assert graph.kept_bytes() == size
    del y


def test_what_no_wanted_gradient_needs_is_not_kept_alive() -> None:
    x = leaf(1.0, 2.0)
    with no_collector():
        h = x * 2
        memory = weakref.ref(h.untyped_storage())
        y = h * CONSTANT  # the gradient of h needs the constant, not h
        del h
        assert memory() is None
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_saved_result_keeps_its_memory_and_not_its_tensor() -> None:
    x = leaf(0.0, 1.0)
    with no_collector():
        y = x.exp()
        tensor, memory = weakref.ref(y), weakref.ref(y.untyped_storage())
        z = y + 1
        del y
        assert tensor() is None and memory() is not None
        z.sum().backward()
        assert memory() is None
    assert x.grad.tolist() == torch.tensor([0.0, 1.0], dtype=torch.float64).exp().tolist()


def test_a_write_before_the_call_is_part_of_its_value() -> None:
    x = leaf(1.0, 2.0)
    y = x * 1
    y.mul_(3)
    (y * y).sum().backward()
    assert x.grad.tolist() == [18.0, 36.0]


def test_a_write_after_it_is_noticed_even_where_it_changes_nothing() -> None:
    x = leaf(1.0, 2.0)
    y = x * 1
    z = (y * y).sum()
    y.mul_(1)
    with pytest.raises(tracer.OverwrittenError, match="mul"):
        z.backward()
    assert x.grad is None


def test_a_write_into_a_constant_that_was_saved_is_noticed() -> None:
    x, factor = leaf(1.0, 2.0), CONSTANT.clone()
    z = (x * factor).sum()
    factor.add_(1)
    with pytest.raises(tracer.OverwrittenError, match="'other'"):
        z.backward()


def test_a_saved_tensor_has_its_history_in_a_recorded_backward() -> None:
    x = leaf(2.0)
    y = x * x
    z = y.sin()  # saves y, a result
    (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    at = torch.tensor([4.0], dtype=torch.float64)
    torch.testing.assert_close(second, 2 * at.cos() - 16 * at.sin())


def test_writes_into_different_meta_tensors_are_told_apart() -> None:
    a, b = (tracer.tensor(torch.ones(2, device="meta"), requires_grad=True) * 1 for _ in range(2))
    with tracer.Graph() as graph:
        y, z = a.sigmoid(), b.sigmoid()
    assert graph.kept_bytes() == 16
    y.mul_(2)
    z.add_(1)
    # The storages of both have the address 0, and both writes left version 1.
    with pytest.raises(tracer.OverwrittenError, match=r"overwritten in place by mul_ of shape"):
        y.sum().backward()
