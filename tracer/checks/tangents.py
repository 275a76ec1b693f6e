"""Forward mode held against backward: ``<c, J v> = <J' c, v>`` for one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer import func
from tracer.checks.derivatives import Call
from tracer.checks.leaves import (
    SEED,
    can_have_gradient,
    leaves_of,
    random_like,
    restart_random,
    tensors_of,
    tracked_leaf,
)


def products(call: Call, values: list[Any], wanted: Sequence[int]) -> tuple[float, float] | None:
    """``<c, J v>`` by ``jvp`` and ``<J' c, v>`` by backward, along random ``v`` and ``c``.

    ``values`` are the arguments of the call, ``wanted`` the positions of those that are differentiated. None for a call without a
    gradient, and where there is nothing to measure by: in less than double precision, among sparse tensors.
    """
    leaves = leaves_of(values, wanted, tracked_leaf)
    inputs = [leaves[i] for i in wanted]
    if not all(map(_measurable, inputs)):
        return None

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full = list(leaves)
        for i, tensor in zip(wanted, tensors, strict=True):
            full[i] = tensor
        restart_random(SEED)
        return tuple([o for o in tensors_of(call(full)) if can_have_gradient(o)])

    outputs = run(*inputs)
    live = [o for o in outputs if o.requires_grad]
    if not live or not all(map(_measurable, outputs)):
        return None
    cotangents = random_like(outputs, 1)
    gradients = torch.autograd.grad(
        live, inputs, [c for c, o in zip(cotangents, outputs, strict=True) if o.requires_grad], allow_unused=True
    )
    tangents = random_like(inputs, 3)
    _, pushed, *_ = func.jvp(run, tuple([x.detach() for x in inputs]), tuple(tangents))
    return _product(cotangents, pushed), _product(gradients, tangents)


def _measurable(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.dtype.to_real() is torch.float64


def _product(left: Sequence[torch.Tensor | None], right: Sequence[torch.Tensor]) -> float:
    wide = [(a.to(torch.complex128), b.to(torch.complex128)) for a, b in zip(left, right, strict=True) if a is not None]
    return float(sum(((a.conj() * b).sum().real.item() for a, b in wide), 0.0))


def agree(pair: tuple[float, float], tolerance: float = 1e-7) -> bool:
    """Whether both are the same up to rounding, in float64 unless a ``tolerance`` is given; what is not finite says nothing."""
    pushed, pulled = torch.tensor(pair, dtype=torch.float64)
    return not bool(pulled.isfinite()) or bool(torch.isclose(pushed, pulled, rtol=tolerance, atol=tolerance))
