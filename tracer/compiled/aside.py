"""Where a compiled step or module runs as it is written: somebody looks at each call, or changes it, and a graph has none of them."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.scopes import watched
from ops_registry.torch_private import DeviceContexts, count_dispatch_modes, count_modes, dual_level, function_modes


def steps_aside() -> bool:
    """Whether here is another capture, a mode of the user's, forward-mode tangents, or anomaly mode."""
    return (
        count_dispatch_modes() > 0
        or torch.is_anomaly_enabled()
        or dual_level() >= 0
        or watched()
        or (count_modes() > 0 and not all(type(mode) is DeviceContexts.DeviceContext for mode in function_modes()))
    )


def default_devices() -> tuple[Any, ...]:
    """The devices that ``with torch.device(...)`` and ``torch.set_default_device`` name here, which are modes as well."""
    return tuple([mode.device for mode in function_modes()]) if count_modes() else ()
