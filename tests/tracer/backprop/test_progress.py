"""What hooks ask of the backward pass around them, and what torch's own tools make of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.leaves import leaf, native_leaf
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.flop_counter import FlopCounterMode

import nn
import tracer
from ops_registry.torch_private import torch_c

ENGINES = [leaf, native_leaf]
Make = Callable[..., torch.Tensor]


def queue(callback: Callable[[], Any]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def test_a_multi_grad_hook_waits_for_all_gradients_that_will_come() -> None:
    found = []
    for make in ENGINES:
        a, b, c = make(1.0), make(2.0), make(3.0)
        u, seen = a * b, []
        register_multi_grad_hook((a, b, c, u), lambda gs, seen=seen: seen.append([g and g.item() for g in gs]))
        (u * 2 + c).sum().backward(retain_graph=True)
        (u * 2).sum().backward(retain_graph=True)
        (u * c).sum().backward(inputs=[a])
        found.append(seen)
    assert found[0] == found[1] == [[4.0, 2.0, 1.0, 2.0], [4.0, 2.0, None, 2.0], [6.0, None, None, 3.0]]


def test_a_multi_grad_hook_of_any_runs_once_a_pass() -> None:
    found = []
    for make in ENGINES:
        a, b = make(1.0), make(2.0)
        seen: list[float] = []
        handle = register_multi_grad_hook((a, b), lambda g, seen=seen: seen.append(g.item()), mode="any")
        for _ in range(2):
            (a * b).sum().backward()
        handle.remove()
        (a * b).sum().backward()
        found.append(seen)
    assert found[0] == found[1] and len(found[0]) == 2


def test_a_multi_grad_hook_hears_of_results_that_got_no_gradient() -> None:
    for make in ENGINES:
        a, b = make(1.0, 2.0).unbind()
        seen: list[list[bool]] = []
        register_multi_grad_hook((a, b), lambda gs, seen=seen: seen.append([g is not None for g in gs]))
        (a * 1).backward()
        assert seen == [[True, False]]


def test_a_multi_grad_hook_may_mix_tracked_and_native_leaves() -> None:
    tracked, native, seen = leaf(2.0), native_leaf(3.0), []
    register_multi_grad_hook((tracked, native), lambda gs: seen.append([g.item() for g in gs]))
    (tracked * native).sum().backward()
    assert seen == [[3.0, 2.0]]


@pytest.mark.parametrize("make", ENGINES)
def test_a_queued_callback_runs_once_every_leaf_is_filled(make: Make) -> None:
    x, log = make(1.0), []
    y = x * 2

    def last() -> None:
        log.append((x.grad.tolist(), torch_c._current_graph_task_id() != -1))

    y.register_hook(lambda g: queue(lambda: (log.append("first"), queue(last))))
    y.sum().backward()
    assert log == ["first", ([2.0], True)]


@pytest.mark.parametrize("make", ENGINES)
def test_a_callback_of_a_failed_pass_does_not_run(make: Make) -> None:
    x, log = make(1.0), []
    y = x * 2
    y.register_hook(lambda g: queue(lambda: log.append("ran")))
    x.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    assert log == [] and torch_c._current_graph_task_id() == -1
    with pytest.raises(RuntimeError, match="during backward pass"):
        queue(lambda: None)


def test_each_pass_has_a_number_of_its_own_whoever_runs_it() -> None:
    ids: dict[str, int] = {}

    def ask(name: str) -> Callable[[torch.Tensor], None]:
        return lambda g: ids.__setitem__(name, torch_c._current_graph_task_id())

    outer, inner, native = leaf(1.0), leaf(1.0), native_leaf(1.0)
    inner.register_hook(ask("inner"))
    native.register_hook(ask("native"))

    def nest(g: torch.Tensor) -> None:
        ask("before")(g)
        with torch.enable_grad():
            (inner * 2).sum().backward()
            (native * 2).sum().backward()
        ask("after")(g)

    outer.register_hook(nest)
    (outer * 2).sum().backward()
    assert ids["before"] == ids["after"] and len({ids[n] for n in ("before", "inner", "native")}) == 3
    assert -1 not in ids.values() and torch_c._current_graph_task_id() == -1


def test_a_pass_of_ours_inside_one_of_torchs_is_the_nearest() -> None:
    inner, native, ids = leaf(1.0), native_leaf(1.0), []
    inner.register_hook(lambda g: ids.append(torch_c._current_graph_task_id()))

    def nest(g: torch.Tensor) -> None:
        ids.append(torch_c._current_graph_task_id())
        with torch.enable_grad():
            (inner * 2).sum().backward()
        ids.append(torch_c._current_graph_task_id())

    native.register_hook(nest)
    (native * 2).sum().backward()
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("make", ENGINES)
def test_hooks_can_ask_for_the_node_that_is_visited(make: Make) -> None:
    x, log = make(1.0), []
    y = x * 2
    here = torch_c._current_autograd_node
    y.register_hook(lambda g: log.append(here() is y.grad_fn))
    y.grad_fn.register_prehook(lambda gs: log.append(here() is y.grad_fn))
    y.grad_fn.register_hook(lambda gi, go: log.append(here() is y.grad_fn))
    x.register_post_accumulate_grad_hook(lambda t: log.append(type(here()).__name__))
    y.sum().backward()
    assert log == [True, True, True, "AccumulateGrad"] and here() is None


def test_a_dispatch_mode_can_ask_for_the_node_that_is_visited() -> None:
    class Nodes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            node = torch_c._current_autograd_node()
            if node is not None:
                seen.add(node.name())
            return func(*args, **(kwargs or {}))

    seen: set[str] = set()
    loss = (leaf(1.0) * leaf(2.0)).exp().sum()
    with Nodes():
        loss.backward()
    assert {"ExpBackward0", "MulBackward0"} <= seen


def test_which_nodes_will_be_visited_is_asked_inside_a_pass_only() -> None:
    x, w, log = leaf(1.0), leaf(2.0), []
    y, z = x * 2, w * 2
    will = torch_c._will_engine_execute_node
    y.register_hook(lambda g: log.append([will(y.grad_fn), will(z.grad_fn)]))
    (y + z).sum().backward(retain_graph=True)
    (y + z).sum().backward(inputs=[x], retain_graph=True)
    y.sum().backward()
    assert log == [[True, True], [True, False], [True, False]]
    with pytest.raises(tracer.NotInBackwardError):
        will(y.grad_fn)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(72, 3))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (model, (2, 1, 8, 8)),
        (lambda: torch.nn.ConvTranspose2d(2, 4, 3), (1, 2, 5, 5)),
        (lambda: torch.nn.Conv2d(4, 4, 3, groups=2, stride=2), (1, 4, 7, 7)),
        (lambda: torch.nn.Linear(3, 4), (2, 5, 3)),
    ],
    ids=["network", "transposed", "grouped", "linear"],
)
def test_flop_counts_of_forward_and_backward_are_torchs(
    build: Callable[[], torch.nn.Module], shape: tuple[int, ...]
) -> None:
    counts = []
    for track in (nn.track, lambda module: module):
        module = track(build())
        with FlopCounterMode(display=False) as counter:
            module(torch.rand(shape)).sum().backward()
        counts.append((counter.get_total_flops(), counter.get_flop_counts()))
    assert counts[0] == counts[1] and counts[0][0] > 0


# ---------------------------------------------------------------------- callbacks at the end
def test_a_callback_at_the_end_of_backward_sees_every_grad_and_runs_once() -> None:
    x, y = leaf(1.0), leaf(2.0)
    seen: list[Any] = []
    handle = x.register_hook(lambda g: tracer.at_end_of_backward(lambda: seen.append((x.grad.item(), y.grad.item()))))
    (x * y).sum().backward()
    handle.remove()
    (x * y).sum().backward()
    assert seen == [(2.0, 1.0)]


def test_callbacks_run_in_their_order_and_may_ask_for_more() -> None:
    x = leaf(1.0)
    seen: list[int] = []

    def first() -> None:
        seen.append(1)
        tracer.at_end_of_backward(lambda: seen.append(3))

    x.register_hook(lambda g: tracer.at_end_of_backward(first))
    x.register_hook(lambda g: tracer.at_end_of_backward(lambda: seen.append(2)))
    x.sum().backward()
    assert seen == [1, 2, 3]


def test_a_callback_of_a_pass_that_raises_is_dropped() -> None:
    x = leaf(1.0)
    seen: list[int] = []

    def fail(gradient: torch.Tensor) -> None:
        tracer.at_end_of_backward(lambda: seen.append(1))
        raise ArithmeticError

    handle = x.register_hook(fail)
    with pytest.raises(ArithmeticError):
        x.sum().backward()
    handle.remove()
    x.sum().backward()
    assert seen == []


def test_a_callback_belongs_to_the_pass_of_its_own_thread_and_depth() -> None:
    x, y = leaf(1.0), leaf(1.0)
    seen: list[str] = []
    y.register_hook(lambda g: tracer.at_end_of_backward(lambda: seen.append("inner")))

    def inside(gradient: torch.Tensor) -> None:
        tracer.at_end_of_backward(lambda: seen.append("outer"))
        with torch.enable_grad():
            y.sum().backward()
        seen.append("between")

    x.register_hook(inside)
    x.sum().backward()
    assert seen == ["inner", "between", "outer"]


def test_asking_for_a_callback_outside_of_backward_is_an_error() -> None:
    with pytest.raises(tracer.NotInBackwardError, match="call it in a hook"):
        tracer.at_end_of_backward(print)
