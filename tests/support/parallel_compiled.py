"""Training programs of compiled steps that call a wrapper, each held to the same program of eager steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import tracer
from nn.parallel import DistributedDataParallel
from support.parallel_training import SMALL, Forked, batch, difference_of, images, network, state

#: Gets what compiles a step, or leaves it as it is, and the rank.
Program = Callable[[Callable[[Any], Any], int], list[torch.Tensor]]
IMAGES = (4, 2, 6, 6)


def run(
    compiled: Any, wrapped: Any, rank: int, shape: tuple[int, ...] = (4, 6), steps: int = 4, clear: bool = True
) -> list[torch.Tensor]:
    step = compiled(lambda x: wrapped(x).pow(2).mean().backward())
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    made = []
    for number in range(steps):
        if clear:
            optimiser.zero_grad()
        step(batch(rank, number, *shape))
        optimiser.step()
        made += state(wrapped)
    return made


def steps_several_buckets(compiled: Any, rank: int) -> list[torch.Tensor]:
    return run(compiled, DistributedDataParallel(network(), bucket_cap_mb=SMALL), rank)


def steps_views(compiled: Any, rank: int) -> list[torch.Tensor]:
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=SMALL, gradient_as_bucket_view=True)
    return run(compiled, wrapped, rank) + run(compiled, wrapped, rank, clear=False)


def steps_added_to_what_is_there(compiled: Any, rank: int) -> list[torch.Tensor]:
    return run(compiled, DistributedDataParallel(network(), bucket_cap_mb=SMALL), rank, clear=False)


def steps_of_batch_norm(compiled: Any, rank: int) -> list[torch.Tensor]:
    return run(compiled, DistributedDataParallel(images()), rank, IMAGES)


def steps_accumulated(compiled: Any, rank: int) -> list[torch.Tensor]:
    """Some calls of the step inside ``no_sync``."""
    wrapped = DistributedDataParallel(images(), bucket_cap_mb=SMALL)
    step = compiled(lambda x: wrapped(x).pow(2).mean().backward())
    made = []
    for number in range(3):
        wrapped.zero_grad()
        with wrapped.no_sync():
            step(batch(rank, 10 * number, *IMAGES))
            step(batch(rank, 10 * number + 1, *IMAGES))
        made += state(wrapped)
        step(batch(rank, 10 * number + 5, *IMAGES))
        made += state(wrapped)
    return made


def accumulated_inside_of_a_step(compiled: Any, rank: int) -> list[torch.Tensor]:
    """``no_sync`` inside of the step, which clears ``.grad`` at first."""
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=SMALL)

    @compiled
    def step(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
        wrapped.zero_grad()
        with wrapped.no_sync():
            wrapped(first).pow(2).mean().backward()
        loss = wrapped(second).pow(2).mean()
        loss.backward()
        with wrapped.no_sync():
            wrapped(third).pow(2).mean().backward()
        return loss.detach()

    made = []
    for number in range(3):
        made.append(step(*(batch(rank, 10 * number + i) for i in range(3))))
        made += state(wrapped)
    return made


def steps_exchanged_twice(compiled: Any, rank: int) -> list[torch.Tensor]:
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=SMALL)

    @compiled
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        wrapped(x).pow(2).mean().backward()
        wrapped(y).pow(2).mean().backward()

    for number in range(3):
        step(batch(rank, number), batch(rank, number + 50))
    return state(wrapped)


def steps_of_two_wrappers(compiled: Any, rank: int) -> list[torch.Tensor]:
    """As adversaries are trained; what the second pass gives the critic is exchanged too, and dropped."""
    torch.manual_seed(0)
    maker = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()))
    critic = DistributedDataParallel(network())

    @compiled
    def step(noise: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        made = maker(noise)
        loss = critic(made.detach()).mean() - critic(real).mean()
        loss.backward()
        (-critic(made).mean()).backward()
        return loss.detach()

    optimisers = [torch.optim.SGD(w.parameters(), lr=0.1) for w in (maker, critic)]
    found = []
    for number in range(3):
        for optimiser in optimisers:
            optimiser.zero_grad()
        found.append(step(batch(rank, number), batch(rank, number + 50)))
        found += state(maker) + state(critic)
        for optimiser in optimisers:
            optimiser.step()
    return found


def steps_of_unused_parameters(compiled: Any, rank: int) -> list[torch.Tensor]:
    wrapped = DistributedDataParallel(Forked(), find_unused_parameters=True, bucket_cap_mb=SMALL / 20)
    step = compiled(lambda x, branches: wrapped(x, branches).pow(2).mean().backward())
    made = []
    for number in range(4):
        wrapped.zero_grad()
        step(batch(rank, number), ("both", "first", ("first", "second")[rank % 2], "second")[number])
        made += state(wrapped)
    return made


def steps_of_a_static_graph(compiled: Any, rank: int) -> list[torch.Tensor]:
    wrapped = DistributedDataParallel(Forked(), static_graph=True, bucket_cap_mb=SMALL / 20)
    step = compiled(lambda x: wrapped(x, "first").pow(2).mean().backward())
    made = []
    for number in range(4):
        wrapped.zero_grad()
        step(batch(rank, number))
        made += state(wrapped)
    return made


def steps_by_uneven_inputs(compiled: Any, rank: int) -> list[torch.Tensor]:
    wrapped = DistributedDataParallel(images(), bucket_cap_mb=SMALL)
    with wrapped.join(divide_by_initial_world_size=False):
        run(compiled, wrapped, rank, IMAGES, steps=3 + 2 * rank)
    return [p.detach().clone() for p in wrapped.parameters()]


def steps_by_hooks(compiled: Any, rank: int) -> list[torch.Tensor]:
    """Communication hooks, and hooks of the user's on parameters."""
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=SMALL)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for number, p in enumerate(wrapped.parameters()):
        p.register_hook(lambda g, n=number: g * (n + 1))
    power = DistributedDataParallel(network())
    power.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5),
        powerSGD_hook.powerSGD_hook,
    )
    return run(compiled, wrapped, rank) + run(compiled, power, rank, steps=6)


def steps_eager_in_between(compiled: Any, rank: int) -> list[torch.Tensor]:
    """The same wrapper in eager steps, by one process at a time too: both take part in the same exchange."""
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=SMALL)
    step = compiled(lambda x: wrapped(x).pow(2).mean().backward())
    made = []
    for number in range(6):
        wrapped.zero_grad()
        if number % 3 == 0 or (number % 3 == 1 and rank == 0):
            wrapped(batch(rank, number)).pow(2).mean().backward()
        else:
            step(batch(rank, number))
        made += state(wrapped)
    return made


def wrapped_anew_between_steps(compiled: Any, rank: int) -> list[torch.Tensor]:
    """Another wrapper under the same name, of the same module."""
    module = network()
    wrapped = DistributedDataParallel(module)
    step = compiled(lambda x: wrapped(x).pow(2).mean().backward())
    step(batch(rank, 0))
    wrapped = DistributedDataParallel(module, bucket_cap_mb=SMALL)
    step(batch(rank, 1))
    step(batch(rank, 2))
    return state(wrapped)


def steps_a_compiled_module_inside(compiled: Any, rank: int) -> list[torch.Tensor]:
    module = network()
    inside = tracer.compile(module, backend="replay") if compiled is by_replay else module
    wrapped = DistributedDataParallel(inside, bucket_cap_mb=SMALL)
    return run(lambda step: step, wrapped, rank)


PROGRAMS: tuple[Program, ...] = (
    *(
        steps_several_buckets,
        steps_views,
        steps_added_to_what_is_there,
        steps_of_batch_norm,
        steps_accumulated,
        accumulated_inside_of_a_step,
        steps_exchanged_twice,
    ),
    *(
        steps_of_two_wrappers,
        steps_of_unused_parameters,
        steps_of_a_static_graph,
        steps_by_uneven_inputs,
        steps_by_hooks,
        steps_eager_in_between,
    ),
    *(wrapped_anew_between_steps, steps_a_compiled_module_inside),
)


def by_replay(step: Callable[..., Any]) -> Any:
    return tracer.compile(step, backend="replay")


def of_compiled_steps(program: Program, rank: int) -> str:
    """How what compiled steps make differs from what eager ones make; nothing where they are equal to the bit."""
    eager = program(lambda step: step, rank)
    compiled = program(by_replay, rank)
    return difference_of(eager, compiled)
