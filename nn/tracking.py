"""``nn.track``: the parameters of a stock ``torch.nn.Module`` become tracked, each staying the same object."""

from __future__ import annotations

from typing import TypeVar

import torch

from ops_registry.sites import name_modules
from tracer.recording.distributed import refuse_wrapped
from tracer.recording.tracked_parameters import check, track_parameter

M = TypeVar("M", bound=torch.nn.Module)


def track(module: M) -> M:
    """Turn every parameter of ``module`` and its submodules into a tracked one, in place, and return ``module``.

    The objects stay the same, so optimisers that hold them, ties between modules and the keys of ``state_dict`` stay as
    they are; ``.grad`` and hooks are kept. Buffers stay plain. Lazy parameters are tracked once the first forward pass
    gives them a shape. Tracking twice changes nothing.

    Raises ``UnsupportedError`` for parameters of other tensor subclasses (DTensor), and for a module that is wrapped for training in
    several processes (DistributedDataParallel); the module is then as it was.
    """
    refuse_wrapped(module)
    parameters = list(module.parameters())
    for parameter in parameters:
        check(parameter)
    for parameter in parameters:
        track_parameter(parameter)
    name_modules(module)
    return module
