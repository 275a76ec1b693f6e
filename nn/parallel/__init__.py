"""Training in several processes: ``DistributedDataParallel`` for tracked parameters. Any other name is one of ``torch.nn.parallel``."""

from typing import Any

import torch

from nn.parallel.data_parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]


def __getattr__(name: str) -> Any:
    try:
        return getattr(torch.nn.parallel, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn.parallel)})
