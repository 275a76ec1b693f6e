"""Recording and backward in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import ops_registry
import tracer


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(i)`` in as many threads, all starting together; the first error of any is raised here."""
    barrier, errors = threading.Barrier(count), []

    def run(i: int) -> None:
        barrier.wait()
        try:
            work(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_gradients_into_a_shared_leaf_add_up_exactly() -> None:
    x = tracer.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    x.grad = torch.zeros(2, dtype=torch.float64)

    def work(i: int) -> None:
        for _ in range(200):
            (x * (i + 1)).sum().backward()

    in_threads(4, work)
    assert x.grad.tolist() == [200 * (1 + 2 + 3 + 4)] * 2


def test_a_shared_leaf_without_grad_loses_no_first_gradient() -> None:
    for _ in range(20):
        x = tracer.tensor([1.0], dtype=torch.float64, requires_grad=True)
        in_threads(4, lambda i, x=x: (x * 1).sum().backward())
        assert x.grad is not None and x.grad.tolist() == [4.0]


def test_separate_graphs_do_not_disturb_each_other() -> None:
    grads: dict[int, list[float]] = {}

    def work(i: int) -> None:
        x = tracer.tensor([float(i + 1)], dtype=torch.float64, requires_grad=True)
        for _ in range(50):
            x.grad = None
            y = x
            for _ in range(20):
                y = y * x
            y.sum().backward()
        grads[i] = x.grad.tolist()  # type: ignore[union-attr]

    in_threads(4, work)
    assert grads == {i: [21.0 * (i + 1) ** 20] for i in range(4)}


def test_a_graph_recorded_in_one_thread_runs_backward_in_another() -> None:
    x = tracer.tensor([3.0], requires_grad=True)
    loss = (x * x).sum()
    in_threads(1, lambda i: loss.backward())
    assert x.grad is not None and x.grad.tolist() == [6.0]


def test_a_grad_mode_does_not_leak_into_another_thread() -> None:
    x, seen = tracer.tensor([1.0], requires_grad=True), []
    with torch.no_grad():
        in_threads(1, lambda i: seen.append((x * 2).requires_grad))
        assert not (x * 2).requires_grad
    assert seen == [True]


def test_graphs_record_their_own_thread() -> None:
    x, counts = tracer.tensor([1.0], requires_grad=True), {}

    def work(i: int) -> None:
        with tracer.Graph() as graph:
            kept = [x * 2 for _ in range(10 * (i + 1))]
            counts[i] = len(graph)
            del kept

    in_threads(3, work)
    assert counts == {0: 10, 1: 20, 2: 30}


def test_replaced_rules_are_the_threads_own() -> None:
    x, grads = tracer.tensor([1.0], requires_grad=True), {}

    def work(i: int) -> None:
        with ops_registry.use({torch.tanh: lambda grad: grad * (i + 10)}):
            for _ in range(50):
                (grad,) = torch.autograd.grad(x.tanh().sum(), x)
        grads[i] = grad.item()

    in_threads(3, work)
    assert grads == {0: 10.0, 1: 11.0, 2: 12.0}


def test_in_place_writes_in_several_threads_on_tensors_of_their_own() -> None:
    x = tracer.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    x.grad = torch.zeros(2, dtype=torch.float64)

    def work(i: int) -> None:
        for _ in range(50):
            y = x * 1
            y[0].mul_(2)
            y.add_(x)
            y.sum().backward()

    in_threads(3, work)
    assert x.grad.tolist() == [150 * 3.0, 150 * 2.0]
