"""The walk through the graph: each node once, when its gradient is complete, and only where one is wanted."""

from __future__ import annotations

import pytest
import torch
from support.leaves import leaf
from torch.multiprocessing.reductions import StorageWeakRef


def test_a_diamond_counts_every_path() -> None:
    a, b = leaf(2.0), leaf(3.0)
    c, d = a + b, a * b
    ((c + d) + (c * d)).backward()
    assert a.grad.tolist() == [1 + 3 + (6 + 5 * 3)] and b.grad.tolist() == [1 + 2 + (6 + 5 * 2)]


def test_grad_visits_only_what_leads_to_the_inputs() -> None:
    x, w = leaf(1.0), leaf(2.0)
    called = []
    h = x * 2
    h.register_hook(lambda g: called.append(1))
    torch.autograd.grad(h * w, w)
    assert not called


def test_a_gradient_inside_the_differentiated_function() -> None:
    x, y = leaf(3.0), leaf(2.0)
    (inner,) = torch.autograd.grad((x * y * y).sum(), y, create_graph=True)
    (outer,) = torch.autograd.grad((x * inner).sum(), x)
    assert outer.item() == 24.0


def test_a_leaf_that_is_gone_needs_no_gradient() -> None:
    x, y = leaf(1.0), leaf(2.0)
    z = x * y
    del x
    z.backward()
    assert y.grad.tolist() == [1.0]


def test_a_backward_inside_a_hook_is_a_pass_of_its_own() -> None:
    x, w = leaf(2.0), leaf(5.0)
    y, inner = x * 3, (w * w).sum()
    y.register_hook(lambda g: inner.backward())
    y.sum().backward()
    assert w.grad.tolist() == [10.0] and x.grad.tolist() == [3.0]


def test_a_deep_chain_needs_no_recursion() -> None:
    # karpathy/micrograd#68
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y + x
    y.backward()
    assert x.grad.tolist() == [20_001.0]
    del y


def test_grad_mode_is_what_it_was_after_a_failed_backward() -> None:
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert torch.is_grad_enabled()


def test_a_gradient_of_zero_is_zeros_and_not_none() -> None:
    x = leaf(1.5, 2.5)
    (x * 3).floor().sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_a_zero_gradient_adds_nothing_where_another_arrives() -> None:
    x = leaf(1.5, 2.5)
    y = x * 3
    (y.floor() + y).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_hook_sees_a_zero_gradient() -> None:
    x, seen = leaf(1.5), []
    y = x * 3
    y.register_hook(seen.append)
    y.floor().sum().backward()
    assert [g.tolist() for g in seen] == [[0.0]]


def test_grad_of_zero_is_zeros_for_results_too() -> None:
    x = leaf(1.5)
    y = x * 3
    assert [g.tolist() for g in torch.autograd.grad(y.floor().sum(), [y, x])] == [[0.0], [0.0]]


def test_what_a_call_saved_is_let_go_before_the_next_is_visited() -> None:
    x, gone = leaf(1.0), []
    y = x * 1
    y.register_hook(lambda g: gone.append(saved.expired()))
    z = y.exp()
    saved = StorageWeakRef(z.untyped_storage())
    loss = z.sum()
    del z
    loss.backward()
    assert gone == [True]
