"""Training programs for several processes, each for torch's DistributedDataParallel on a native model and for ours on a tracked one."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.utils.checkpoint import checkpoint

import nn

#: A program gets the wrapper's class and the rank, and returns tensors: what the two wrappers make of it has to be equal to the bit.
Program = Callable[[Any, int], list[torch.Tensor]]
#: Small enough for several buckets of the networks below, in MiB.
SMALL = 0.002

warnings.filterwarnings("ignore", message=".*broadcast_buffers.*")


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
    )


def images() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    )


class Forked(torch.nn.Module):
    """Two branches, of which a pass uses one or both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor, branches: str = "both") -> torch.Tensor:
        hidden = x
        if branches in ("both", "first"):
            hidden = hidden + self.first(x)
        if branches in ("both", "second"):
            hidden = hidden + self.second(x).tanh()
        return self.last(hidden)


class Checkpointed(torch.nn.Module):
    """The same stretch twice, each time under a checkpoint."""

    def __init__(self, reentrant: bool, times: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stretch, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
        self.reentrant, self.times = reentrant, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = checkpoint(lambda x: self.stretch(x).tanh(), x, use_reentrant=self.reentrant)
        return self.last(x)


def batch(rank: int, step: int, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(100 * step + rank))


def gradients(module: torch.nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.tolist() for p in module.parameters()]


def completed(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


def counting(wrapped: nn.parallel.DistributedDataParallel) -> list[int]:
    """The number of each bucket that leaves from now on."""
    left: list[int] = []

    def hook(state: Any, bucket: Any) -> torch.futures.Future[Any]:
        left.append(bucket.index())
        return completed(bucket.buffer())

    wrapped.register_comm_hook(None, hook)
    return left


def state(wrapped: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters, gradients and buffers."""
    gradients = [p.grad.detach().clone() for p in wrapped.parameters() if p.grad is not None]
    return [*(v.detach().clone() for v in wrapped.state_dict().values()), *gradients]


def trained(
    wrapped: torch.nn.Module, rank: int, steps: int = 4, shape: tuple[int, ...] = (4, 6), set_to_none: bool = True
) -> list[torch.Tensor]:
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimiser.zero_grad(set_to_none)
        wrapped(batch(rank, step, *shape)).pow(2).mean().backward()
        optimiser.step()
    return state(wrapped)


# ---------------------------------------------------------------------- arguments of the wrapper
def one_bucket(wrap: Any, rank: int) -> list[torch.Tensor]:
    return trained(wrap(network()), rank)


def several_buckets(wrap: Any, rank: int) -> list[torch.Tensor]:
    return trained(wrap(network(), bucket_cap_mb=SMALL), rank)


def bucket_views(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL, gradient_as_bucket_view=True)
    return trained(wrapped, rank) + trained(wrapped, rank, set_to_none=False)


def zeroed_in_place(wrap: Any, rank: int) -> list[torch.Tensor]:
    return trained(wrap(network(), bucket_cap_mb=SMALL), rank, set_to_none=False)


def copied_by_the_bucket(wrap: Any, rank: int) -> list[torch.Tensor]:
    try:
        wrapped = wrap(network(), bucket_cap_mb=SMALL, batched_grad_copy=True)
    except TypeError:  # torch has the argument since 2.13
        wrapped = wrap(network(), bucket_cap_mb=SMALL)
    return trained(wrapped, rank)


def of_batch_norm(wrap: Any, rank: int) -> list[torch.Tensor]:
    return trained(wrap(images(), bucket_cap_mb=SMALL), rank, shape=(4, 2, 6, 6))


def buffers_left_alone(wrap: Any, rank: int) -> list[torch.Tensor]:
    return trained(wrap(images(), broadcast_buffers=False), rank, shape=(4, 2, 6, 6))


def channels_last(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(images().to(memory_format=torch.channels_last), bucket_cap_mb=SMALL)
    return [t.contiguous() for t in trained(wrapped, rank, shape=(4, 2, 6, 6))]


def of_several_dtypes(wrap: Any, rank: int) -> list[torch.Tensor]:
    module = network()
    module[4].double()
    module[3] = Cast()
    return trained(wrap(module), rank)


class Cast(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


def not_synchronised_at_first(wrap: Any, rank: int) -> list[torch.Tensor]:
    """Without ``init_sync`` each process starts from its own parameters, and the gradients are averaged all the same."""
    module = network()
    with torch.no_grad():
        module[0].bias.add_(rank)
    return trained(wrap(module, init_sync=False), rank)


def parameters_sent_at_first(wrap: Any, rank: int) -> list[torch.Tensor]:
    module = network()
    with torch.no_grad():
        module[0].bias.add_(rank)
    return trained(wrap(module), rank)


def in_a_group_of_its_own(wrap: Any, rank: int) -> list[torch.Tensor]:
    group = dist.new_group(list(range(dist.get_world_size())))
    return trained(wrap(network(), process_group=group), rank)


def parameters_left_alone(wrap: Any, rank: int) -> list[torch.Tensor]:
    module = network()
    TorchDistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.bias"])
    with torch.no_grad():
        module[0].bias.add_(rank)
    return trained(wrap(module), rank)


def of_two_wrappers(wrap: Any, rank: int) -> list[torch.Tensor]:
    """As adversaries are trained, the sum of squares of all gradients beside."""
    maker, critic = wrap(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())), wrap(network())
    with torch.no_grad():
        for p in maker.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
    made = []
    for step in range(3):
        for wrapped in (maker, critic):
            wrapped.zero_grad()
        fake = maker(batch(rank, step))
        (critic(fake.detach()).mean() - critic(batch(rank, step + 50)).mean()).backward()
        (-critic(fake).mean()).backward()
        made.append(torch.nn.utils.clip_grad_norm_(maker.parameters(), 0.1).detach().clone())
        made += state(maker) + state(critic)
    return made


class Odd(torch.nn.Module):
    """Parameters without elements, complex, transposed, and shared; a dictionary of results, of which one is not used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.empty = torch.nn.Parameter(torch.empty(0, 3))
        self.phase = torch.nn.Parameter(torch.randn(3, dtype=torch.cfloat))
        self.turned = torch.nn.Parameter(torch.randn(3, 6).t())
        self.strided = torch.nn.Parameter(torch.randn(6, 6)[:, ::2])
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.second(self.first(x @ self.turned + x @ self.strided)) + self.empty.sum()
        return {"loss": [(hidden * self.phase).abs().pow(2).mean()], "unused": (hidden,)}


def of_odd_parameters(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(Odd(), bucket_cap_mb=SMALL / 20, find_unused_parameters=True)
    for step in range(3):
        wrapped.zero_grad()
        wrapped(batch(rank, step))["loss"][0].backward()
    return [t.contiguous() for t in state(wrapped)]


# ---------------------------------------------------------------------- parameters that a pass does not use
def unused_here_and_there(wrap: Any, rank: int) -> list[torch.Tensor]:
    """Each rank leaves out another branch, and in some steps all leave out the same one."""
    wrapped = wrap(Forked(), find_unused_parameters=True, bucket_cap_mb=SMALL / 20)
    made = []
    for set_to_none in (True, False):
        for step in range(4):
            wrapped.zero_grad(set_to_none)
            branches = ("both", "first", ("first", "second")[rank % 2], "second")[step]
            wrapped(batch(rank, step), branches).pow(2).mean().backward()
            made += state(wrapped)
    return made


def unused_in_a_static_graph(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(Forked(), static_graph=True, bucket_cap_mb=SMALL / 20)
    made = []
    for step in range(4):
        wrapped.zero_grad()
        wrapped(batch(rank, step), "first").pow(2).mean().backward()
        made += state(wrapped)
    return made


def frozen_and_freed(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(Forked(), find_unused_parameters=True)
    made = []
    for step in range(4):
        wrapped.module.second.requires_grad_(step != 1)
        wrapped.zero_grad()
        wrapped(batch(rank, step)).pow(2).mean().backward()
        made += state(wrapped)
    return made


# ---------------------------------------------------------------------- passes
def accumulated(wrap: Any, rank: int, **arguments: Any) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL, **arguments)
    made = []
    for step in range(3):
        wrapped.zero_grad()
        with wrapped.no_sync():
            for micro in range(2):
                wrapped(batch(rank, 10 * step + micro)).pow(2).mean().backward()
        made += [p.grad.clone() for p in wrapped.parameters()]
        wrapped(batch(rank, 10 * step + 5)).pow(2).mean().backward()
        made += state(wrapped)
    return made


def accumulated_in_views(wrap: Any, rank: int) -> list[torch.Tensor]:
    return accumulated(wrap, rank, gradient_as_bucket_view=True)


def accumulated_with_every_pass_exchanged(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    for step in range(3):
        wrapped(batch(rank, step)).pow(2).mean().backward()
    return state(wrapped)


def two_forward_passes(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    for step in range(3):
        (wrapped(batch(rank, step)) * wrapped(batch(rank, step + 50))).sum().backward()
    return state(wrapped)


def checkpointed(wrap: Any, rank: int) -> list[torch.Tensor]:
    return trained(wrap(Checkpointed(reentrant=False, times=2), bucket_cap_mb=SMALL / 20), rank)


def checkpointed_by_the_old_kind(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(Checkpointed(reentrant=True, times=1), bucket_cap_mb=SMALL / 20)
    made = []
    for step in range(3):
        wrapped.zero_grad()
        wrapped(batch(rank, step).requires_grad_()).pow(2).mean().backward()
        made += state(wrapped)
    return made


def checkpointed_several_times_in_a_static_graph(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(Checkpointed(reentrant=True, times=3), bucket_cap_mb=SMALL / 20, static_graph=True)
    made = []
    for step in range(4):
        wrapped.zero_grad()
        wrapped(batch(rank, step).requires_grad_()).pow(2).mean().backward()
        made += state(wrapped)
    return made


def evaluated_in_between(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(images())
    made = trained(wrapped, rank, 2, (4, 2, 6, 6))
    with torch.no_grad():
        made.append(wrapped(batch(rank, 7, 4, 2, 6, 6)))
    wrapped(batch(rank, 8, 4, 2, 6, 6))  # no backward pass follows
    return made + trained(wrapped, rank, 2, (4, 2, 6, 6))


def by_uneven_inputs(wrap: Any, rank: int, **arguments: Any) -> list[torch.Tensor]:
    """Rank 0 has 3 steps, the others more."""
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with wrapped.join(**arguments):
        for step in range(3 + 2 * rank):
            optimiser.zero_grad()
            wrapped(batch(rank, step)).pow(2).mean().backward()
            optimiser.step()
    return [p.detach().clone() for p in wrapped.parameters()]


def by_uneven_inputs_divided_by_who_is_there(wrap: Any, rank: int) -> list[torch.Tensor]:
    return by_uneven_inputs(wrap, rank, divide_by_initial_world_size=False)


def by_uneven_inputs_with_unused_parameters(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(Forked(), find_unused_parameters=True)
    with wrapped.join():
        for step in range(3 + 2 * rank):
            wrapped.zero_grad()
            wrapped(batch(rank, step), ("both", "first")[step % 2]).pow(2).mean().backward()
    return [p.detach().clone() for p in wrapped.parameters()]


# ---------------------------------------------------------------------- copies and checkpoints
def saved_whole(wrap: Any, rank: int) -> list[torch.Tensor]:
    """The wrapper itself through a file."""
    file = io.BytesIO()
    torch.save(wrap(network(), bucket_cap_mb=SMALL), file)
    file.seek(0)
    return trained(torch.load(file, weights_only=False), rank)


def copied(wrap: Any, rank: int) -> list[torch.Tensor]:
    wrapped = wrap(network(), bucket_cap_mb=SMALL)
    trained(wrapped, rank)
    return trained(copy.deepcopy(wrapped), rank)


def wrapped_again(wrap: Any, rank: int) -> list[torch.Tensor]:
    module = network()
    trained(wrap(module), rank)
    return trained(wrap(module), rank)


def loaded_from_the_other_kind(wrap: Any, rank: int) -> list[torch.Tensor]:
    """Half of the steps by torch's wrapper, then by this one, through a file, and back."""
    first = TorchDistributedDataParallel(network())
    trained(first, rank)
    then = wrap(network())
    then.load_state_dict(saved_and_loaded(first))
    made = trained(then, rank)
    last = TorchDistributedDataParallel(network())
    last.load_state_dict(saved_and_loaded(then))
    return made + trained(last, rank)


def saved_and_loaded(module: torch.nn.Module) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file)


SAME: tuple[Program, ...] = (
    one_bucket,
    several_buckets,
    bucket_views,
    zeroed_in_place,
    copied_by_the_bucket,
    of_batch_norm,
    buffers_left_alone,
    channels_last,
    of_several_dtypes,
    not_synchronised_at_first,
    parameters_sent_at_first,
    in_a_group_of_its_own,
    parameters_left_alone,
    unused_here_and_there,
    unused_in_a_static_graph,
    frozen_and_freed,
    accumulated,
    accumulated_in_views,
    accumulated_with_every_pass_exchanged,
    two_forward_passes,
    checkpointed,
    checkpointed_by_the_old_kind,
    checkpointed_several_times_in_a_static_graph,
    evaluated_in_between,
    by_uneven_inputs,
    by_uneven_inputs_divided_by_who_is_there,
    by_uneven_inputs_with_unused_parameters,
    of_two_wrappers,
    of_odd_parameters,
    saved_whole,
    copied,
    wrapped_again,
    loaded_from_the_other_kind,
)


def difference(program: Program, rank: int) -> str:
    """How what ours makes of ``program`` differs from what torch's makes of it; nothing where they are equal to the bit."""
    theirs = program(TorchDistributedDataParallel, rank)
    ours = program(nn.parallel.DistributedDataParallel, rank)
    return difference_of(theirs, ours)


def difference_of(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str:
    """How tensors differ from those expected; nothing where they are equal to the bit. That there are none is a difference."""
    if len(expected) != len(found) or not expected:
        return f"{len(found)} tensors in place of {len(expected)}"
    differ = [
        f"tensor {i}: off by {(a - b).abs().max().item() if a.shape == b.shape else a.shape}"
        for i, (a, b) in enumerate(zip(expected, found, strict=True))
        if not torch.equal(a, b)
    ]
    return "; ".join(differ[:3])


#: Those in which sums over more than two processes could be taken in another order.
OF_FOUR: tuple[Program, ...] = (one_bucket, several_buckets, bucket_views, of_batch_norm, unused_in_a_static_graph)
