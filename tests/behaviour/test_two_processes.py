"""Training in two processes that talk over the loopback device: the same numbers as with torch's own tensors, or an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.once import once_for_all_workers
from support.processes import in_two_processes

import nn
import tracer

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from torch.nn.parallel import DistributedDataParallel


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))


def tracked_after_wrapping(rank: int) -> str:
    try:
        nn.track(DistributedDataParallel(torch.nn.Linear(2, 1)))
    except tracer.UnsupportedError as error:
        return str(error)
    return ""


def averaged(rank: int, tracked: bool) -> list[Any]:
    """Parameters and gradients of a rank: by DistributedDataParallel, or as the error tells."""
    torch.manual_seed(rank)
    module = torch.nn.Linear(2, 1)
    input = torch.full((1, 2), rank + 1.0)
    if tracked:
        nn.track(module)
        for p in module.parameters():
            dist.broadcast(p.detach(), 0)
        module(input).pow(2).sum().backward()
        for p in module.parameters():
            assert p.grad is not None
            dist.all_reduce(p.grad.div_(dist.get_world_size()))
    else:
        wrapped = DistributedDataParallel(module)  # whose hooks go with it
        wrapped(input).pow(2).sum().backward()
    return [(p.tolist(), p.grad.tolist()) for p in module.parameters() if p.grad is not None]


def beside_a_tracked_term(rank: int, tracked: bool) -> list[Any]:
    """Gradients of a wrapped plain module whose result meets a tensor that is tracked, or is not."""
    wrapped = DistributedDataParallel(model())
    scale: Any = tracer.tensor([rank + 3.0], requires_grad=True) if tracked else torch.tensor([rank + 3.0])
    (wrapped(torch.full((1, 2), rank + 1.0)) * scale).pow(2).sum().backward()
    return [p.grad.tolist() for p in wrapped.parameters() if p.grad is not None]


def through_collectives(rank: int, tracked: bool) -> list[Any]:
    """Gradients through torch's differentiable collectives."""
    from torch.distributed.nn import functional

    warnings.simplefilter("ignore")  # deprecated since torch 2.13
    made = []
    for call in (
        functional.all_reduce,
        lambda y: functional.all_gather(y)[1],
        lambda y: functional.broadcast(y, 0),
        lambda y: functional.reduce_scatter(torch.empty(2), [y, y * 3]),
        lambda y: functional.all_to_all([torch.empty(2), torch.empty(2)], [y, y * 3])[0],
    ):
        values = [rank + 1.0, 2.0]
        x = tracer.tensor(values, requires_grad=True) if tracked else torch.tensor(values, requires_grad=True)
        result = call(x * 2)
        ((result * result).sum() * (rank + 1) + 0 * x.sum()).backward()
        assert x.grad is not None
        made.append((result.tolist(), x.grad.tolist()))
    return made


def in_a_pipeline(rank: int, tracked: bool) -> list[Any]:
    """Gradients of a rank's stage of a pipeline."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    stage = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()), torch.nn.Linear(3, 1)][rank]
    if tracked:
        nn.track(stage)
    schedule = Schedule1F1B(
        PipelineStage(stage, rank, 2, torch.device("cpu")), 2, loss_fn=lambda y, target: (y - target).pow(2).sum()
    )
    if rank == 0:
        schedule.step(torch.ones(4, 2))
    else:
        schedule.step(target=torch.zeros(4, 1))
    return [p.grad.tolist() for p in stage.parameters() if p.grad is not None]


def with_sharded_optimiser(rank: int, tracked: bool) -> list[Any]:
    """Parameters after two steps of ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = nn.track(model()) if tracked else model()
    optimiser = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        module(torch.full((1, 2), rank + 1.0)).sum().backward()
        for p in module.parameters():
            assert p.grad is not None
            dist.all_reduce(p.grad.div_(dist.get_world_size()))
        optimiser.step()
    return [p.tolist() for p in module.parameters()]


SAME = (averaged, beside_a_tracked_term, through_collectives, in_a_pipeline, with_sharded_optimiser)


def all_of_them(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {f.__name__: (f(rank, False), f(rank, True)) for f in SAME}
    return {**found, "tracked_after_wrapping": tracked_after_wrapping(rank)}


def two_processes() -> list[dict[str, Any]]:
    return in_two_processes(all_of_them)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return once_for_all_workers(tmp_path_factory, two_processes)


@pytest.mark.parametrize("function", SAME)
def test_what_works_over_two_processes_gives_torchs_numbers(
    ranks: list[dict[str, Any]], function: Callable[..., Any]
) -> None:
    for rank in ranks:
        theirs, ours = rank[function.__name__]
        assert ours and ours == theirs


def test_a_data_parallel_module_is_refused_in_every_process(ranks: list[dict[str, Any]]) -> None:
    assert all("DistributedDataParallel" in rank["tracked_after_wrapping"] for rank in ranks)
