"""Hooks on tensors, leaves and nodes."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from support.hook_programs import run_program
from support.leaves import leaf, native_leaf
from support.memory import no_collector

import ops_registry
import tracer


def test_a_hook_sees_the_complete_gradient() -> None:
    x, seen = leaf(1.0), []
    y = x * 2
    y.register_hook(seen.append)
    (y + y * 3).sum().backward()
    assert [g.tolist() for g in seen] == [[4.0]]


def test_a_hook_may_replace_the_gradient() -> None:
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert x.grad.tolist() == [20.0]


def test_hooks_run_in_the_order_of_registration_each_on_what_the_last_returned() -> None:
    x = leaf(1.0)
    x.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: g * 10)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [30.0]


def test_a_removed_hook_does_not_run() -> None:
    x = leaf(1.0)
    handle = x.register_hook(lambda g: g * 100)
    handle.remove()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0]


def test_a_hook_on_one_of_several_results_sees_its_own_gradient() -> None:
    x, seen = leaf(1.0, 2.0), []
    a, b = x.unbind()
    b.register_hook(seen.append)
    (a * 3 + b * 5).backward()
    assert [g.item() for g in seen] == [5.0] and x.grad.tolist() == [3.0, 5.0]


def test_retain_grad_fills_grad_of_a_result() -> None:
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    assert y.retains_grad
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3.0]


def test_retain_grad_sees_what_hooks_made_of_it() -> None:
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    (y * 3).sum().backward()
    assert y.grad.tolist() == [30.0]


def test_retain_grad_does_not_keep_the_tensor_alive() -> None:
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    z = y * 3
    del y
    z.sum().backward()
    assert x.grad.tolist() == [6.0]


def test_retain_grad_and_hooks_need_a_gradient_to_come() -> None:
    x = tracer.tensor([1.0])
    with pytest.raises(tracer.NoHistoryError):
        x.retain_grad()
    with pytest.raises(tracer.NoHistoryError):
        x.register_hook(print)


def test_a_post_accumulate_hook_runs_once_the_leaf_is_filled() -> None:
    x, seen = leaf(1.0), []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (x * 2 + x).sum().backward()
    assert seen == [[3.0]]


def test_a_post_accumulate_hook_may_step_and_drop_the_gradient() -> None:
    x = leaf(1.0)

    def step(tensor: torch.Tensor) -> None:
        with torch.no_grad():
            tensor -= 0.1 * tensor.grad
        tensor.grad = None

    x.register_post_accumulate_grad_hook(step)
    (x * 2).sum().backward()
    assert x.grad is None and x.item() == pytest.approx(0.8)


def test_a_post_accumulate_hook_needs_a_leaf() -> None:
    with pytest.raises(tracer.NoHistoryError, match="leaf"):
        (leaf(1.0) * 2).register_post_accumulate_grad_hook(print)


def test_what_a_hook_computes_under_create_graph_is_differentiable() -> None:
    found = []
    for x in (leaf(2.0), torch.tensor([2.0], dtype=torch.float64, requires_grad=True)):
        y = x * x
        y.register_hook(lambda g: g * g)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        found.append((first.item(), second.item()))
    assert found[0] == found[1]
    assert found[0][0] == 8 * 2.0**5  # (2 x²)² 2x


def test_hooks_of_a_node_see_both_sides_of_its_rule() -> None:
    x, seen = leaf(3.0), []
    y = x * x
    y.grad_fn.register_hook(
        lambda inputs, outputs: seen.append(([g.item() for g in inputs], [g.item() for g in outputs]))
    )
    y.sum().backward()
    assert seen == [([3.0, 3.0], [1.0])]


def test_a_prehook_of_a_node_may_replace_the_gradient() -> None:
    x = leaf(3.0)
    y = x * 2
    y.grad_fn.register_prehook(lambda grads: (grads[0] * 10,))
    y.sum().backward()
    assert x.grad.tolist() == [20.0]


def test_hooks_make_no_cycle() -> None:
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda g: g)
    alive = weakref.ref(y.grad_fn)
    with no_collector():
        del y
        assert alive() is None


def test_grad_adds_to_what_a_tensor_retains_and_shares_no_memory_with_what_it_returns() -> None:
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    for _ in range(2):
        (found,) = torch.autograd.grad((y * 3).sum(), y, retain_graph=True)
    found.zero_()
    assert y.grad.tolist() == [6.0]


def test_a_hook_of_a_node_may_return_other_gradients() -> None:
    found = []
    for x in (leaf(3.0), torch.tensor([3.0], dtype=torch.float64, requires_grad=True)):
        y = x * torch.full_like(x, 2.0)
        y.grad_fn.register_hook(lambda inputs, outputs: tuple(None if g is None else g * 10 for g in inputs))
        y.sum().backward()
        found.append(x.grad.tolist())
    assert found == [[20.0], [20.0]]


def test_a_prehook_of_a_call_with_several_results_sees_all_their_gradients() -> None:
    found = []
    for x in (leaf(1.0, 2.0, 3.0), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)):
        a, b, _ = x.unbind()
        assert a.grad_fn is b.grad_fn
        seen: list[int] = []

        def tenfold(grads: tuple[torch.Tensor | None, ...], seen: list[int] = seen) -> tuple[torch.Tensor | None, ...]:
            seen.append(len(grads))
            return tuple(None if g is None else g * 10 for g in grads)

        a.grad_fn.register_prehook(tenfold)
        (a * 2 + b * 3).backward()
        found.append((x.grad.tolist(), seen))
    assert found[0] == found[1] == ([20.0, 30.0, 0.0], [3])


def test_full_backward_hooks_of_modules_may_change_the_gradient() -> None:
    found = []
    for track in (True, False):
        layer = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(layer.weight, 3.0)
        x = leaf(1.0, 2.0).float().detach().requires_grad_() if track else torch.tensor([1.0, 2.0], requires_grad=True)
        seen: list[int] = []
        layer.register_full_backward_hook(
            lambda m, inputs, outputs, seen=seen: seen.append(len(inputs)) or tuple(g * 2 for g in inputs)
        )
        layer(x * 1).sum().backward()
        found.append((x.grad.tolist(), seen))
    assert found[0] == found[1] == ([6.0, 6.0], [1])


ENGINES = [leaf, native_leaf]


@pytest.mark.parametrize("inputs", [False, True], ids=["all leaves", "two leaves"])
@pytest.mark.parametrize("seeds", range(8))
def test_hooks_see_the_same_in_the_same_order_as_in_torch(seeds: int, inputs: bool) -> None:
    for seed in range(20 * seeds, 20 * seeds + 20):
        assert run_program(seed, leaf, inputs) == run_program(seed, native_leaf, inputs), f"program {seed}"


def test_an_optimiser_in_backward_holds_one_gradient_at_a_time() -> None:
    weights = [leaf(1.0, 1.0) for _ in range(20)]
    alive: list[weakref.ref[torch.Tensor]] = []
    most = []

    def step(weight: torch.Tensor) -> None:
        alive.append(weakref.ref(weight.grad))
        most.append(sum(reference() is not None for reference in alive))
        weight.grad = None

    h = leaf(1.0, 2.0)
    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)
        h = h * weight
    h.sum().backward()
    assert most == [1] * 20


def test_a_leaf_is_filled_for_its_hooks_before_the_rest_of_the_graph_is_visited() -> None:
    for make in ENGINES:
        log: list[str] = []
        early, late = make(1.0), make(2.0)
        inner = early * 2
        inner.register_hook(lambda g, log=log: log.append("inner"))
        late.register_post_accumulate_grad_hook(lambda t, log=log: log.append("late"))
        (inner * late).sum().backward()
        assert log == ["late", "inner"]


def test_a_failed_pass_leaves_leaves_without_such_hooks_alone() -> None:
    hooked, bare, early = leaf(1.0), leaf(1.0), leaf(1.0)
    hooked.register_post_accumulate_grad_hook(lambda t: None)
    inner = early * 2
    inner.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (inner * hooked * bare).sum().backward()
    assert hooked.grad.tolist() == [2.0] and bare.grad is None and early.grad is None


def test_post_accumulate_hooks_run_for_leaves_given_as_inputs_and_not_in_grad() -> None:
    for make in ENGINES:
        x, seen = make(1.0), []
        x.register_post_accumulate_grad_hook(lambda t, seen=seen: seen.append(t.grad.tolist()))
        (x * 3).sum().backward(inputs=[x])
        torch.autograd.grad((x * 3).sum(), x)
        assert seen == [[3.0]]


def test_hooks_of_a_leafs_node_see_the_gradient_before_and_after_it_is_filled_in() -> None:
    for make in ENGINES:
        x, log = make(1.0), []
        node = x.view_as(x).grad_fn.next_functions[0][0]
        node.register_prehook(lambda gs, log=log: (log.append(("before", gs[0].tolist())), (gs[0] * 3,))[1])
        node.register_hook(lambda gi, go, log=log: log.append(("after", gi, go[0].tolist())))
        (x * 2).sum().backward()
        assert log == [("before", [2.0]), ("after", (), [6.0])] and x.grad.tolist() == [6.0]


def test_a_hook_on_a_result_that_no_gradient_comes_for_is_told_so() -> None:
    for make in ENGINES:
        seen: list[Any] = []
        a, b = make(1.0, 2.0).unbind()
        b.register_hook(seen.append)
        del b
        (a * 1).backward()
        assert seen == [None]


def test_a_hook_may_not_make_a_gradient_out_of_none() -> None:
    a, b = leaf(1.0, 2.0).unbind()
    b.register_hook(lambda g: torch.ones(()))
    with pytest.raises(ops_registry.RuleResultError, match="none has come"):
        (a * 1).backward()


def test_hooks_on_an_adopted_leaf_run_in_grad_too() -> None:
    native, tracked, seen = torch.ones(1, requires_grad=True), leaf(2.0).float().detach().requires_grad_(), []
    native.register_hook(lambda g: (seen.append(g.tolist()), g * 10)[1])
    (found,) = torch.autograd.grad((native * tracked).sum(), native)
    assert seen == [[2.0]] and found.tolist() == [20.0]


def test_a_hook_added_by_a_hook_runs_in_the_same_pass_where_it_is_not_too_late() -> None:
    for make in ENGINES:
        log: list[str] = []
        x = make(1.0)
        y = x * 2

        def add(g: torch.Tensor, x: torch.Tensor = x, y: torch.Tensor = y, log: list[str] = log) -> None:
            x.register_hook(lambda g: log.append("x"))
            y.register_hook(lambda g: log.append("y"))

        y.register_hook(add)
        y.sum().backward()
        assert log == ["x"]
