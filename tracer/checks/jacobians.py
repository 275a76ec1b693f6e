"""Jacobians by central differences, and how a Jacobian is laid out. Knows plain tensors and callables only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

#: Gives the results of the function at the present values of its inputs, as plain tensors.
Evaluate = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Jacobian:
    """The derivative of one output with respect to one input.

    ``values[part, *output_element, *input_element]`` is the gradient, in torch's convention, that the input element gets from the real
    (part 0) or imaginary (part 1) part of the output element; it is complex where the input is (its parts are the derivatives with
    respect to the input's parts). A real output has part 0 alone.
    """

    values: torch.Tensor
    output_shape: tuple[int, ...]
    input_shape: tuple[int, ...]

    @property
    def matrix(self) -> torch.Tensor:
        """The same as (parts x output elements) by (input elements)."""
        rows = self.values.shape[0]
        for size in self.output_shape:
            rows *= size
        columns = 1
        for size in self.input_shape:
            columns *= size
        return self.values.reshape(rows, columns)


def from_rows(rows: Sequence[torch.Tensor], output: torch.Tensor, like: torch.Tensor) -> Jacobian:
    """The Jacobian whose rows, one for each unit cotangent of ``unit_cotangents(output)``, are gradients shaped as ``like``."""
    parts = 2 if output.is_complex() else 1
    shape = (parts, *output.shape, *like.shape)
    values = torch.stack(list(rows)).reshape(shape) if rows else like.new_zeros(shape)
    return Jacobian(values, tuple(output.shape), tuple(like.shape))


def unit_cotangents(output: torch.Tensor) -> list[torch.Tensor]:
    """One for each element of ``output``, then, where it is complex, i for each element: what backward gives for it is a row."""
    found = []
    values: tuple[complex, ...] = (1, 1j) if output.is_complex() else (1,)
    for value in values:
        for k in range(output.numel()):
            cotangent = torch.zeros(output.shape, dtype=output.dtype, device=output.device)
            cotangent.view(-1)[k].fill_(value)
            found.append(cotangent)
    return found


def real_and_imaginary(output: torch.Tensor) -> torch.Tensor:
    """Real and imaginary part along a new first axis; a real tensor has one part."""
    return torch.stack((output.real, output.imag)) if output.is_complex() else output.unsqueeze(0)


def numerical_jacobians(call: Evaluate, data: torch.Tensor, eps: float) -> list[Jacobian]:
    """The derivative of each output of ``call`` with respect to ``data``, by central differences of step ``eps``.

    ``data`` shares memory with what ``call`` computes from: one element after the other is moved and put back.
    """
    outputs = [o.clone() for o in call()]
    columns: list[list[torch.Tensor]] = [[] for _ in outputs]
    for position in _positions(data.shape):
        along = _difference(call, data, position, eps)
        if data.is_complex():
            along = [
                torch.complex(a, b) for a, b in zip(along, _difference(call, data, position, eps * 1j), strict=True)
            ]
        for column, change in zip(columns, along, strict=True):
            column.append(change)
    found = []
    for output, column in zip(outputs, columns, strict=True):
        head = real_and_imaginary(output)
        kind = head.to(torch.promote_types(head.dtype, data.dtype)) if data.is_complex() else head
        shape = (*head.shape, *data.shape)
        values = torch.stack(column, -1).reshape(shape) if column else kind.new_zeros(shape)
        found.append(Jacobian(values, tuple(output.shape), tuple(data.shape)))
    return found


def _positions(shape: torch.Size) -> list[tuple[int, ...]]:
    return (
        [tuple(p) for p in torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)).tolist()]
        if shape
        else [()]
    )


def _difference(call: Evaluate, data: torch.Tensor, position: tuple[int, ...], step: complex) -> list[torch.Tensor]:
    """The change of each output, by parts, per unit of the step."""
    before = data[position].clone()
    ends = []
    try:
        for sign in (1, -1):
            data[position] = before + sign * step
            ends.append([real_and_imaginary(o).clone() for o in call()])
    finally:
        data[position] = before
    return [(up - down) / (2 * abs(step)) for up, down in zip(*ends, strict=True)]


def directional(call: Evaluate, data: torch.Tensor, direction: torch.Tensor, step: float) -> list[torch.Tensor]:
    """The derivative of each output of ``call`` along ``direction`` in ``data``, by central differences; ``data`` is put back."""
    before = data.clone()
    ends = []
    try:
        for sign in (1, -1):
            data.copy_(before + sign * step * direction)
            ends.append([o.clone() for o in call()])
    finally:
        data.copy_(before)
    return [(up - down) / (2 * step) for up, down in zip(*ends, strict=True)]
