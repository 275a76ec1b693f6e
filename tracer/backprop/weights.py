"""The cotangents that a sweep starts with: what the user weights each output with."""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch

from ops_registry.shared.descriptors import device_of as device_of_tensor
from ops_registry.shared.descriptors import dtype_of, shape_of
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import GradientArgumentError
from tracer.node import Node
from tracer.recording.grad_fn import device_of


def implicit_gradient(output: Any, node: Node, position: int) -> torch.Tensor:
    """1, for a scalar output, or the edge of one. Raises ``GradientArgumentError`` for several elements or a complex one."""
    shape, dtype, _ = _kind_of(output, node)
    if shape.numel() != 1:
        raise GradientArgumentError(
            f"a gradient can be created implicitly only for scalar outputs, and output {position} has shape {tuple(shape)}. "
            f"Pass gradient=, or reduce it (.sum(), .mean())."
        )
    if not dtype.is_floating_point:
        raise GradientArgumentError(
            f"a gradient can be created implicitly only for real scalar outputs, and output {position} is {dtype}. Pass gradient=."
        )
    if not isinstance(output, torch.Tensor):
        return torch.ones(shape, dtype=dtype, device=device_of(node))
    with DisableTorchFunctionSubclass():
        return torch.ones_like(output, memory_format=torch.preserve_format, requires_grad=False)


def spread_weight(weight: Any, output: Any, node: Node, position: int) -> torch.Tensor:
    """The weight of an output, a number or a tensor, in its shape and dtype; the history of the weight is kept.

    Raises ``GradientArgumentError`` for one that does not broadcast to the output's shape, and where one alone of both is complex.
    """
    shape, dtype, device = _kind_of(output, node)
    if isinstance(weight, Number):
        if isinstance(weight, complex) and not dtype.is_complex:
            raise GradientArgumentError(
                f"output {position} is {dtype}, and its gradient is to be {weight!r}, which is complex"
            )
        return torch.full(tuple(shape), weight, dtype=dtype, device=device)  # type: ignore[call-overload]
    if not isinstance(weight, torch.Tensor):
        raise GradientArgumentError(
            f"gradients are tensors, numbers or None; the one for output {position} is {type(weight).__name__}"
        )
    if weight.dtype.is_complex != dtype.is_complex:
        raise GradientArgumentError(
            f"output {position} is {dtype} and the gradient given for it {weight.dtype}: both are complex, or none"
        )
    if weight.shape != shape:
        if not _broadcasts(weight.shape, shape):
            raise GradientArgumentError(
                f"the gradient given for output {position} has shape {tuple(weight.shape)}, and the output {tuple(shape)}: pass one that "
                f"broadcasts to that shape"
            )
        weight = weight.expand(shape)
    return weight if weight.dtype == dtype else weight.to(dtype)


def _kind_of(output: Any, node: Node) -> tuple[torch.Size, torch.dtype, torch.device | None]:
    if isinstance(output, torch.Tensor):
        with DisableTorchFunctionSubclass():
            return shape_of(output), dtype_of(output), device_of_tensor(output)
    if node.shape is None or node.dtype is None:
        raise GradientArgumentError(
            f"the shape of what {node.op} returned is not known any more: start from the tensor, not from its edge"
        )
    return node.shape, node.dtype, device_of(node)


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
