"""Training programs as in ``parallel_training``: communication hooks, hooks of the user's, optimisers made for several processes."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer

from support.parallel_training import SMALL, Program, batch, network, state, trained


def by_the_allreduce_hook(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    return trained(wrapped, rank)


def compressed_to_half(wrap: Any, rank: int, **arguments: Any) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL, **arguments)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return trained(wrapped, rank)


def compressed_in_views(wrap: Any, rank: int) -> list[torch.Tensor]:
    return compressed_to_half(wrap, rank, gradient_as_bucket_view=True)


def compressed_by_the_wrapper_of_a_hook(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    return trained(wrapped, rank)


def compressed_by_the_hook_that_torch_builds_in(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return trained(wrapped, rank)


def compressed_by_power_sgd(wrap: Any, rank: int) -> list[torch.Tensor]:
    """In one bucket: with several of them, on gloo, the collectives inside torch's hook meet in another order in each process."""
    wrapped = wrap(network())
    wrapped.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5),
        powerSGD_hook.powerSGD_hook,
    )
    return trained(wrapped, rank, steps=6)


def compressed_twice(wrap: Any, rank: int) -> list[torch.Tensor]:
    """PowerSGD in half precision; its state goes through a file, with the errors that it feeds back."""
    wrapped = wrap(network())
    compression = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    wrapped.register_comm_hook(compression, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook))
    made = trained(wrapped, rank)
    again = wrap(network())
    loaded = pickle.loads(pickle.dumps(compression))
    loaded.process_group = None
    again.register_comm_hook(loaded, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook))
    return made + trained(again, rank) + [error.clone() for error in loaded.error_dict.values()]


def averaged_after_some_steps(wrap: Any, rank: int) -> list[torch.Tensor]:
    """Local steps, and the parameters averaged from time to time."""
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][rank]
    local = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=2)
    wrapped.register_comm_hook(local, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2)
    optimiser = PostLocalSGDOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.1), averager)
    for step in range(5):
        optimiser.zero_grad()
        wrapped(batch(rank, step)).pow(2).mean().backward()
        optimiser.step()
    return state(wrapped)


def stepped_by_the_hook(wrap: Any, rank: int) -> list[torch.Tensor]:
    """The optimiser steps when a bucket has come back."""
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    wrapped._register_fused_optim(torch.optim.SGD, 0.1)
    for step in range(3):
        wrapped.zero_grad()
        wrapped(batch(rank, step)).pow(2).mean().backward()
    return state(wrapped)


def with_an_optimiser_that_shares_its_state(wrap: Any, rank: int) -> list[torch.Tensor]:
    """Each process holds a part of the state; uneven inputs."""
    wrapped = wrap(network())
    optimiser = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.01)
    with Join([wrapped, optimiser]):
        for step in range(2 + rank):
            optimiser.zero_grad()
            wrapped(batch(rank, step)).pow(2).mean().backward()
            optimiser.step()
    return [p.detach().clone() for p in wrapped.parameters()]


def hooks_of_the_user(wrap: Any, rank: int) -> list[torch.Tensor]:
    """Hooks on the gradient before it leaves, and hooks that see the process's own ``.grad``."""
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    seen = []
    for number, p in enumerate(wrapped.parameters()):
        p.register_hook(lambda g, n=number: g * (n + 1))
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    return trained(wrapped, rank) + seen


def a_hook_that_clears_the_gradient(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    if rank == 0:
        wrapped.module[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return trained(wrapped, rank)


HOOKED: tuple[Program, ...] = (
    by_the_allreduce_hook,
    compressed_to_half,
    compressed_in_views,
    compressed_by_the_wrapper_of_a_hook,
    compressed_by_the_hook_that_torch_builds_in,
    compressed_by_power_sgd,
    compressed_twice,
    averaged_after_some_steps,
    stepped_by_the_hook,
    with_an_optimiser_that_shares_its_state,
    hooks_of_the_user,
    a_hook_that_clears_the_gradient,
)
