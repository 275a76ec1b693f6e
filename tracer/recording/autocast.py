"""Autocast of ops that do not reach torch as one call: those whose rule runs the forward itself, or that other ops define.

torch casts the arguments of such an op and runs what is beneath it with autocast off. So do we, with casts that are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ops_registry.binding import Spelling
from ops_registry.torch_private import has_autocast_kernel, is_any_autocast_enabled
from tracer.node import tensors_in

#: Ops on torch's lists that autocast does not bring to single precision. Their rules, or the ops that define them, are cast themselves.
_NOT_IN_SINGLE = frozenset(
    (
        "chain_matmul",
        "cross",
        "einsum",
        "gru_cell",
        "linalg_multi_dot",
        "lstm_cell",
        "matmul",
        "rnn_relu_cell",
        "rnn_tanh_cell",
        "scaled_dot_product_attention",
    )
)

#: The op on torch's lists that a composite calls, where the composite itself is on none.
_INNER_OPS = {"nll_loss_nd": "nll_loss"}


def autocast_to_single(
    lane: Callable[..., Any],
    spelling: Spelling,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The result of ``lane`` on arguments in single precision and with autocast off; ``NotImplemented`` where autocast asks for none."""
    if not is_any_autocast_enabled():
        return NotImplemented
    tensors = tensors_in([*args, *kwargs.values()])
    device = next((t.device.type for t in tensors if t.is_floating_point()), "cpu")
    if not _runs_in_single(spelling.rule.name, _name(func), device) or not torch.is_autocast_enabled(device):
        return NotImplemented
    args, kwargs = _cast(args, device), _cast(kwargs, device)
    with torch.autocast(device, enabled=False):
        return lane(spelling, func, args, kwargs)


def _name(func: Callable[..., Any]) -> str:
    name: str = getattr(func, "__name__", "")
    return name.partition(".")[0]


@cache
def _runs_in_single(rule: str, called: str, device: str) -> bool:
    return torch.amp.is_autocast_available(device) and any(
        name not in _NOT_IN_SINGLE and has_autocast_kernel(_INNER_OPS.get(name, name), device)
        for name in (rule, called)
    )


def _cast(value: Any, device: str) -> Any:
    """As torch's autocast: floating tensors of the device, double ones excepted."""
    if isinstance(value, torch.Tensor):
        eligible = value.is_floating_point() and value.device.type == device and value.dtype != torch.double
        return value.float() if eligible else value
    if isinstance(value, dict):
        return {name: _cast(part, device) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)([_cast(part, device) for part in value])
    return value
