"""Threads that call compiled steps by turns and at once get what they get eagerly, or an error that names the other thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nn
import tracer

Step = Callable[..., Any]


def mlp(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)))


def step_of(model: torch.nn.Module) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().sum()
        loss.backward()
        return loss.detach()

    return step


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """What each call gives, or raises, in a thread of its own, all at once."""
    found: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(at: int) -> None:
        start.wait()
        try:
            found[at] = calls[at]()
        except Exception as error:
            found[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def batches(rows: int) -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, 4 * size).view(size, 4).sin() for size in range(rows, rows + 3)]


def test_first_calls_at_once_on_models_of_their_own() -> None:
    models, twins = [mlp(seed) for seed in range(4)], [mlp(seed) for seed in range(4)]
    steps = [tracer.compile(step_of(model), backend="replay") for model in models]
    found = in_threads(*[lambda step=step: [step(x) for x in batches(3)] for step in steps])
    expected = [[step_of(twin)(x) for x in batches(3)] for twin in twins]
    torch.testing.assert_close(found, expected)
    for model, twin in zip(models, twins, strict=True):
        torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_one_step_called_at_once_has_one_graph_a_shape() -> None:
    model = mlp().eval()
    step = tracer.compile(lambda x: model(x).square().sum().detach(), backend="replay")
    found = in_threads(*[lambda: [step(x) for x in batches(3) * 3] for _ in range(4)])
    expected = [model(x).square().sum().detach() for x in batches(3) * 3]
    torch.testing.assert_close(found, [expected] * 4)
    assert len(step.explain().rows) == 3


def test_a_graph_that_runs_another_step_waits_for_no_one_who_waits_for_it() -> None:
    models, inner_steps = [mlp(1), mlp(2)], [tracer.compile(lambda x, k=k: x * k, backend="replay") for k in (2, 3)]
    both, armed = threading.Barrier(2), threading.Event()

    def backend_of(inner: Step) -> Callable[..., Any]:
        def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Step:
            def run(*given: torch.Tensor) -> Any:
                if armed.is_set():
                    both.wait(60)  # both threads are in the middle of a graph, and each wants to capture
                    inner(torch.ones(5, 4))
                return graph(*given)

            return run

        return backend

    steps = [
        tracer.compile(step_of(model), backend=backend_of(inner))
        for model, inner in zip(models, inner_steps, strict=True)
    ]
    x = batches(3)[0]
    expected = [step(x) for step in steps]
    armed.set()
    torch.testing.assert_close(in_threads(*[lambda step=step: step(x) for step in steps]), expected)
    assert [len(step.explain().rows) for step in inner_steps] == [1, 1]


@pytest.mark.parametrize(
    "use",
    [lambda model: model(torch.ones(5, 4)), lambda model: model[0].weight.data.add_(1), lambda model: model[1].running_mean.add_(1)],
    ids=["call", "write", "write into a buffer"],
)  # fmt: skip
def test_a_thread_that_uses_a_model_while_it_is_captured_is_told(use: Callable[[torch.nn.Module], Any]) -> None:
    model, told = mlp(), queue.SimpleQueue[Any]()

    def elsewhere() -> None:
        try:
            use(model)
        except Exception as error:
            told.put(error)

    def step(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return step_of(model)(x)

    compiled = tracer.compile(step, backend="replay")
    before = [value.clone() for value in model.state_dict().values()]
    compiled(torch.ones(5, 4))
    error = told.get_nowait()
    assert isinstance(error, tracer.CaptureError)
    assert "is used in another thread" in str(error)
    assert torch.equal(model.state_dict()["0.weight"], before[0])


def test_an_optimiser_in_another_thread_takes_its_step_during_a_capture() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer, model = torch.optim.SGD([weight], lr=0.5), mlp()

    def step(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()
        return step_of(model)(x)

    tracer.compile(step, backend="replay")(torch.ones(5, 4))
    assert not torch.equal(weight.detach(), torch.ones(2))
