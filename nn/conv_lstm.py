"""Convolutional LSTM over sequences of images (Shi et al., 2015)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from nn.errors import ArgumentError, ShapeError
from nn.module import Module
from nn.parameter import Parameter

State = tuple[torch.Tensor, torch.Tensor]


class ConvLSTM2d(Module):
    """An LSTM whose matrix products are convolutions; images keep their size.

    Takes ``(N, T, in_channels, H, W)`` and gives ``(output, (h, c))``: ``output (N, T, hidden_channels, H, W)``, the
    last layer's hidden state at each time, and the states of all layers after the last time,
    ``(num_layers, N, hidden_channels, H, W)`` each. Without ``N`` in the input there is none in the results.
    Parameters, gates (input, forget, cell, output) and initialisation are those of ``torch.nn.LSTM``, which it is for
    images of one pixel. ``kernel_size`` is odd.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        kernel_size: int | tuple[int, int],
        num_layers: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(kernel) != 2 or any(k < 1 or k % 2 == 0 for k in kernel):
            raise ArgumentError(
                f"ConvLSTM2d: kernel_size must be odd, so that images keep their size: got {kernel_size}"
            )
        if min(in_channels, hidden_channels, num_layers) < 1:
            raise ArgumentError(
                f"ConvLSTM2d: in_channels, hidden_channels and num_layers must be positive: got {in_channels}, "
                f"{hidden_channels}, {num_layers}"
            )
        self.in_channels = in_channels
        self.hidden_channels = hidden_channels
        self.kernel_size = kernel
        self.num_layers = num_layers
        self.bias = bias
        for layer in range(num_layers):
            width = hidden_channels if layer else in_channels
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (4 * hidden_channels, width, *kernel)}
            shapes["weight_hh"] = (4 * hidden_channels, hidden_channels, *kernel)
            if bias:
                shapes["bias_ih"] = shapes["bias_hh"] = (4 * hidden_channels,)
            for name, shape in shapes.items():
                parameter = Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(f"{name}_l{layer}", parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform up to one by the root of what one hidden value sees of the state before."""
        bound = 1 / math.sqrt(self.hidden_channels * math.prod(self.kernel_size))
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: torch.Tensor, hx: State | None = None) -> tuple[torch.Tensor, State]:
        """Raises ``ShapeError`` for an input or a state of another shape, and for sequences without an image."""
        if input.dim() not in (4, 5) or input.shape[-3] != self.in_channels or input.shape[-4] == 0:
            raise ShapeError(
                f"ConvLSTM2d: the input must be (N, T, {self.in_channels}, H, W) or (T, {self.in_channels}, H, W) with "
                f"T > 0, and has shape {tuple(input.shape)}"
            )
        batched = input.dim() == 5
        hidden, cell = self._states(input, hx)
        sequence = input if batched else input.unsqueeze(0)
        hiddens, cells = [], []
        for layer in range(self.num_layers):
            sequence, h, c = self._run(layer, sequence, hidden[layer], cell[layer])
            hiddens.append(h)
            cells.append(c)
        last = torch.stack(hiddens), torch.stack(cells)
        if batched:
            return sequence, last
        return sequence.squeeze(0), (last[0].squeeze(1), last[1].squeeze(1))

    def _states(self, input: torch.Tensor, hx: State | None) -> State:
        """The states before the first time, with the batch dimension."""
        batch = input.shape[:-4]
        shape = (self.num_layers, *batch, self.hidden_channels, *input.shape[-2:])
        if hx is None:
            zeros = torch.zeros(shape, dtype=input.dtype, device=input.device)
            hidden, cell = zeros, zeros
        else:
            hidden, cell = hx
            if hidden.shape != shape or cell.shape != shape:
                raise ShapeError(
                    f"ConvLSTM2d: for an input {tuple(input.shape)} h and c must be {shape}, and are "
                    f"{tuple(hidden.shape)} and {tuple(cell.shape)}"
                )
        return (hidden, cell) if batch else (hidden.unsqueeze(1), cell.unsqueeze(1))

    def _run(
        self, layer: int, sequence: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One layer over all times."""
        weight_ih, weight_hh, *biases = [
            getattr(self, f"{name}_l{layer}")
            for name in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ()))
        ]
        bias_ih, bias_hh = biases or (None, None)
        padding = [k // 2 for k in self.kernel_size]
        # What the images drive does not wait for the state: one convolution for all times.
        driven = F.conv2d(sequence.flatten(0, 1), weight_ih, bias_ih, padding=padding)
        outputs = []
        for drive in driven.reshape(*sequence.shape[:2], *driven.shape[1:]).unbind(1):
            i, f, g, o = (drive + F.conv2d(h, weight_hh, bias_hh, padding=padding)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, 1), h, c

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return (
            f"{self.in_channels}, {self.hidden_channels}, kernel_size={self.kernel_size}, "
            f"num_layers={self.num_layers}, bias={self.bias}"
        )
