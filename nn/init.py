"""Initialisation: torch's initialisers, which take tracked tensors too, and ``initialize_`` for whole modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.init import *  # noqa: F403
from torch.nn.init import __all__ as _torchs
from torch.nn.init import (
    calculate_gain,
    kaiming_normal_,
    kaiming_uniform_,
    ones_,
    orthogonal_,
    trunc_normal_,
    xavier_normal_,
    xavier_uniform_,
    zeros_,
)

from nn.conv_lstm import ConvLSTM2d
from nn.errors import ArgumentError
from tracer.errors import UnsupportedError

__all__ = ["Initialized", "Report", "initialize_"]
__all__ += _torchs

_NORMS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
    torch.nn.InstanceNorm1d,
    torch.nn.InstanceNorm2d,
    torch.nn.InstanceNorm3d,
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
    torch.nn.RMSNorm,
)

#: The standard deviation of a standard normal cut at two: what is drawn is made wider by it.
_CUT_AT_TWO = 0.87962566103423978


@dataclass(frozen=True)
class Initialized:
    """What happened to one parameter: ``by`` is the initialiser, "" where it was left as it was."""

    name: str
    shape: tuple[int, ...]
    by: str


@dataclass(frozen=True)
class Report:
    """What ``initialize_`` set, one row for each parameter; printed it is a table."""

    rows: tuple[Initialized, ...]

    def __iter__(self) -> Iterator[Initialized]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [(row.name, str(row.shape), row.by or "left as it was") for row in self.rows]
        widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(2)]
        return "\n".join(f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {by}" for name, shape, by in cells)


def initialize_(
    module: torch.nn.Module,
    scheme: str,
    *,
    mode: str = "fan_in",
    nonlinearity: str | None = None,
    a: float = 0.0,
    std: float | None = None,
    generator: torch.Generator | None = None,
) -> Report:
    """Set the parameters of ``module`` and all its submodules in place by a named scheme, and report what was set.

    ``scheme`` is ``"xavier_uniform"``, ``"xavier_normal"``, ``"kaiming_uniform"``, ``"kaiming_normal"``,
    ``"orthogonal"`` or ``"trunc_normal"``; ``"xavier"`` and ``"kaiming"`` are the uniform ones, ``"truncated_normal"``
    is the last. Gains are ``calculate_gain(nonlinearity, a)``, where ``nonlinearity`` is ``"leaky_relu"`` for kaiming
    and ``"linear"`` otherwise, unless given; fans are torch's. ``mode`` matters to kaiming and to the truncated normal,
    which has the standard deviation ``std``, by default ``gain / sqrt(fan)``, and is cut at two of those of the normal
    it is cut from.

    - Weights of two dimensions and more get the scheme. Those that hold several (the gates of recurrent layers, the
      projections of attention) are set one by one, and the row of an embedding's ``padding_idx`` is zero.
    - Biases become 0; weights of norm layers 1 and their biases 0.
    - Other parameters of less than two dimensions are left as they are, and the report says so.
    - A weight computed by ``torch.nn.utils.parametrize`` is set through its parametrization. A tied one is set once,
      under its first name.

    Raises ``ArgumentError`` for names that it does not know, ``tracer.UnsupportedError`` for lazy modules that have no
    shapes yet.
    """
    fill = _filler(scheme, mode, nonlinearity, a, std, generator)
    lazy = [name for name, parameter in module.named_parameters() if torch.nn.parameter.is_lazy(parameter)]
    if lazy:
        raise UnsupportedError(
            f"initialize_() met lazy parameters without a shape ({', '.join(lazy)}): run a forward pass first"
        )
    rows, seen = [], set()
    with torch.no_grad():
        for owner, prefix, name, parametrized in _walk(module):
            parameter = getattr(owner, name)
            if not parametrized:
                if id(parameter) in seen:
                    continue
                seen.add(id(parameter))
            # Written through an alias; what is parametrized is computed afresh at each access, and assigned.
            target = torch.empty_like(parameter) if parametrized else parameter.detach()
            by = _set(owner, name, target, scheme, fill)
            if by and parametrized:
                setattr(owner, name, target)
            rows.append(Initialized(prefix + name, tuple(parameter.shape), by))
    return Report(tuple(rows))


def _walk(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, str, bool]]:
    """Every parameter: its module, that one's prefix, its name, and whether it is parametrized."""
    for path, owner in module.named_modules():
        if "parametrizations" in path.split("."):
            continue
        prefix = f"{path}." if path else ""
        if torch.nn.utils.parametrize.is_parametrized(owner):
            for name in owner.parametrizations:
                yield owner, prefix, name, True
        for name, _ in owner.named_parameters(recurse=False):
            yield owner, prefix, name, False


def _set(
    owner: torch.nn.Module, name: str, target: torch.Tensor, scheme: str, fill: Callable[[torch.Tensor], Any]
) -> str:
    """Set one parameter; the initialiser's name, or "" where there is none for it."""
    if isinstance(owner, _NORMS):
        (zeros_ if name == "bias" else ones_)(target)
        return "zeros" if name == "bias" else "ones"
    if target.dim() >= 2:
        for block in target.chunk(_blocks(owner, name, target)):
            fill(block)
        if isinstance(owner, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and owner.padding_idx is not None:
            target[owner.padding_idx] = 0
        return scheme
    if "bias" in name:
        zeros_(target)
        return "zeros"
    return ""


def _blocks(owner: torch.nn.Module, name: str, target: torch.Tensor) -> int:
    """How many weights lie in this one, below one another."""
    if isinstance(owner, torch.nn.MultiheadAttention):
        return 3 if name == "in_proj_weight" else 1
    if name.startswith(("weight_ih", "weight_hh")):  # a recurrent layer's gates
        if isinstance(owner, (torch.nn.RNNBase, torch.nn.RNNCellBase)):
            return len(target) // owner.hidden_size
        if isinstance(owner, ConvLSTM2d):
            return len(target) // owner.hidden_channels
    return 1


def _filler(
    scheme: str, mode: str, nonlinearity: str | None, a: float, std: float | None, generator: torch.Generator | None
) -> Callable[[torch.Tensor], Any]:
    """The initialiser of one weight."""
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"initialize_(): mode must be 'fan_in' or 'fan_out', not {mode!r}")
    kind = scheme.split("_")[0]
    named: Any = nonlinearity or ("leaky_relu" if kind == "kaiming" else "linear")
    try:
        gain = calculate_gain(named, a)
    except ValueError as error:
        raise ArgumentError(f"initialize_(): {error}") from None

    def truncated(weight: torch.Tensor) -> None:
        fan = weight[0].numel() if mode == "fan_in" else len(weight) * weight[0, 0].numel()
        wanted = gain / math.sqrt(fan) if std is None else std
        width = wanted / _CUT_AT_TWO
        trunc_normal_(weight, 0.0, width, -2 * width, 2 * width, generator)

    def kaiming(initialiser: Callable[..., Any]) -> Callable[[torch.Tensor], Any]:
        return lambda weight: initialiser(weight, a, mode, named, generator)

    fillers: dict[str, Callable[[torch.Tensor], Any]] = {
        "xavier": lambda weight: xavier_uniform_(weight, gain, generator),
        "xavier_uniform": lambda weight: xavier_uniform_(weight, gain, generator),
        "xavier_normal": lambda weight: xavier_normal_(weight, gain, generator),
        "kaiming": kaiming(kaiming_uniform_),
        "kaiming_uniform": kaiming(kaiming_uniform_),
        "kaiming_normal": kaiming(kaiming_normal_),
        "orthogonal": lambda weight: orthogonal_(weight, gain, generator),
        "trunc_normal": truncated,
        "truncated_normal": truncated,
    }
    if scheme not in fillers:
        raise ArgumentError(f"initialize_() knows no scheme {scheme!r}; there are {', '.join(fillers)}")
    return fillers[scheme]
