"""What several processes make of a training program, beside torch's wrapper and beside one process; and faults that they meet together."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import nn
import ops_registry
from support.parallel_compiled import PROGRAMS as COMPILED
from support.parallel_compiled import of_compiled_steps
from support.parallel_hooks import HOOKED
from support.parallel_training import OF_FOUR, SAME, SMALL, Forked, Program, batch, difference, network, state


# ---------------------------------------------------------------------- beside one process on the joined batch
def joined(rank: int, step: int, *shape: int) -> torch.Tensor:
    """The part of a rank; all parts for rank -1."""
    return torch.cat([batch(r, step, *shape) for r in range(2)]) if rank < 0 else batch(rank, step, *shape)


def plainly(module: torch.nn.Module) -> torch.nn.Module:
    return nn.track(module)


def by_parts(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network())
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        optimiser.zero_grad()
        wrapped(joined(rank, step)).pow(2).mean().backward()
        optimiser.step()
    return state(wrapped)


def accumulated_by_parts(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network())
    with getattr(wrapped, "no_sync", contextlib.nullcontext)():
        for micro in range(2):
            wrapped(joined(rank, micro)).pow(2).mean().backward()
    wrapped(joined(rank, 2)).pow(2).mean().backward()
    return state(wrapped)


def with_a_replaced_rule(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network())
    with ops_registry.use({torch.relu: lambda grad, result: 3 * grad.clamp(min=0)}):
        wrapped(joined(rank, 0)).pow(2).mean().backward()
    return state(wrapped)


def with_a_penalty_on_the_gradient(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network())
    x = joined(rank, 0).requires_grad_()
    (slope,) = torch.autograd.grad(wrapped(x).sum(), x, create_graph=True)
    (wrapped(x).pow(2).mean() + slope.pow(2).mean()).backward()
    return state(wrapped)


JOINED: tuple[Program, ...] = (
    by_parts,
    accumulated_by_parts,
    with_a_replaced_rule,
    with_a_penalty_on_the_gradient,
)


def distance(program: Program, rank: int) -> float:
    """How far two processes are from one that has all the data."""
    ours = program(nn.parallel.DistributedDataParallel, rank)
    alone = program(plainly, -1)
    return max((a - b).abs().max().item() for a, b in zip(ours, alone, strict=True))


# ---------------------------------------------------------------------- faults that all processes see
def of_other_models(rank: int) -> str:
    """What each rank is told where rank 1 has one more output."""
    return told(lambda: nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2 + rank)))


def of_other_frozen_parameters(rank: int) -> str:
    module = network()
    module[0].bias.requires_grad_(rank == 0)
    return told(lambda: nn.parallel.DistributedDataParallel(module))


def of_other_buffers(rank: int) -> str:
    module = network()
    if rank == 1:
        module.register_buffer("more", torch.zeros(3))
    return told(lambda: nn.parallel.DistributedDataParallel(module))


def unused_everywhere(rank: int) -> str:
    wrapped = nn.parallel.DistributedDataParallel(Forked(), bucket_cap_mb=SMALL / 20)
    return told(lambda: wrapped(batch(rank, 0), "first").sum().backward())


def compressed_to_bfloat16(rank: int) -> list[bool]:
    """Whether torch's hook gives the mean of rounded gradients on gloo, where torch's wrapper refuses it: parameter by parameter."""
    wrapped = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=SMALL)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    wrapped(batch(rank, 0)).pow(2).mean().backward()
    alone = nn.track(network())
    alone(batch(rank, 0)).pow(2).mean().backward()
    found = []
    for p, q in zip(wrapped.parameters(), alone.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        rounded = q.grad.bfloat16().div_(dist.get_world_size())
        dist.all_reduce(rounded)
        found.append(torch.equal(p.grad, rounded.float()))
    return found


def told(function: Callable[[], Any]) -> str:
    try:
        function()
    except nn.ExchangeError as error:
        return str(error)
    return ""


FAULTS = (of_other_models, of_other_frozen_parameters, of_other_buffers, unused_everywhere)


def unused_in_one(rank: int) -> dict[str, Any]:
    """Rank 0 leaves a branch out and raises; what rank 1, which waits for it, is told, and after how long."""
    wrapped = nn.parallel.DistributedDataParallel(Forked(), gradient_as_bucket_view=True)
    wrapped(batch(rank, 0)).sum().backward()
    before = [p.grad.tolist() for p in wrapped.parameters() if p.grad is not None]
    began = time.monotonic()
    text = told(lambda: wrapped(batch(rank, 0), ("first", "both")[rank]).sum().backward())
    seconds = time.monotonic() - began
    after = [p.grad.tolist() for p in wrapped.parameters() if p.grad is not None]
    return {"text": text, "seconds": seconds, "as before": before == after}


def differences(rank: int) -> dict[str, Any]:
    """``difference`` and ``distance`` of every program, and what each fault tells, in two processes."""
    return {
        **{program.__name__: difference(program, rank) for program in (*SAME, *HOOKED)},
        **{program.__name__: distance(program, rank) for program in JOINED},
        **{fault.__name__: fault(rank) for fault in FAULTS},
        **{program.__name__: of_compiled_steps(program, rank) for program in COMPILED},
        "compressed_to_bfloat16": compressed_to_bfloat16(rank),
        "losses_of_the_demo": losses_of_the_demo(rank),
    }


def differences_of_four(rank: int) -> dict[str, str]:
    """``difference`` for some of them, in four processes."""
    return {program.__name__: difference(program, rank) for program in OF_FOUR}


# ---------------------------------------------------------------------- the demo
def losses_of_the_demo(rank: int) -> dict[str, float]:
    """How far the losses of 200 steps in two processes are from those of one on the joined batch.

    Batch norm by its running statistics and without dropout: both depend on what a process sees beside each example. The rate is a tenth of
    the demo's: in float32, at that one, the kinks of relu and pooling make different runs of different roundings, in one process too.
    """
    from train_digits import BATCH, DigitNet, load

    data = load()
    torch.manual_seed(0)
    alone = nn.track(DigitNet().eval())
    wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (alone, wrapped)]
    order = torch.Generator().manual_seed(0)
    worst, first, last = 0.0, 0.0, 0.0
    for step in range(200):
        rows = torch.randint(len(data.train_images), (BATCH,), generator=order)
        losses = []
        for module, part, optimiser in zip((alone, wrapped), (rows, rows.chunk(2)[rank]), optimisers, strict=True):
            loss = torch.nn.functional.cross_entropy(module(data.train_images[part]), data.train_digits[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.data)
        dist.all_reduce(losses[1])
        worst = max(worst, (losses[0] - losses[1] / 2).abs().item())
        last = losses[0].item()
        first = first if step else last
    return {"worst": worst, "first": first, "last": last}
