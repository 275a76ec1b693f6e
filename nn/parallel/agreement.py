"""Whether all processes hold the same model: asked once, before anything is sent that only fits equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import torch
import torch.distributed as dist

from nn.errors import ExchangeError


def check_same_model(
    module: torch.nn.Module, ignored: Collection[str], group: dist.ProcessGroup, *, buffers: bool
) -> None:
    """Raise ``ExchangeError``, in every process, where parameters, and ``buffers``, are not of the same kinds in all of them."""
    parameters = [(name, p) for name, p in module.named_parameters() if name not in ignored]
    lines = [_line("parameter", name, p) for name, p in parameters]
    if buffers:
        lines += [_line("buffer", name, b) for name, b in module.named_buffers() if name not in ignored]
    text = "\n".join(
        line.partition(": ")[2] for line in lines
    )  # names may differ: what is exchanged does not know them
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    mine = torch.tensor([digest], device=parameters[0][1].device)
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, mine, group=group)
    if len({int(one) for one in all_of_them}) > 1:
        _refuse(lines, group)


def _line(kind: str, name: str, tensor: torch.Tensor) -> str:
    wanted = f", requires_grad={tensor.requires_grad}" if kind == "parameter" else ""
    return f"{name}: {kind} of shape {tuple(tensor.shape)}, strides {tensor.stride()}, {tensor.dtype}{wanted}"


def _refuse(lines: list[str], group: dist.ProcessGroup) -> None:
    models: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(models, lines, group=group)
    rank, other = _first_that_differ(models)
    here, there = models[rank], models[other]
    place = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if _kind(a) != _kind(b)), None)
    if place is None:
        place = min(len(here), len(there))
    first, second = (_entry(model, place) for model in (here, there))
    raise ExchangeError(
        f"the processes hold different models: rank {rank} has {len(here)} parameters and buffers, rank {other} has {len(there)}. "
        f"Number {place} is the first that differs: rank {rank} has {first}, rank {other} has {second}. Build the same model in every "
        f"process, and freeze the same parameters, before it is wrapped by DistributedDataParallel."
    )


def _kind(line: str) -> str:
    return line.partition(": ")[2]


def _entry(model: list[str], place: int) -> str:
    return model[place] if place < len(model) else "none there"


def _first_that_differ(models: list[list[str]]) -> tuple[int, int]:
    kinds = [[_kind(line) for line in model] for model in models]
    return 0, next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
