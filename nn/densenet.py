"""DenseNet's blocks (Huang et al., 2017): every layer sees what all layers before it made."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F

from nn.layers import AvgPool2d, BatchNorm2d, Conv2d, ReLU, Sequential
from nn.module import Module


class DenseBlock(Module):
    """``num_layers`` layers, each adding ``growth_rate`` channels to those that it is given.

    Takes ``(N, in_channels, H, W)`` and gives ``(N, out_channels, H, W)`` with
    ``out_channels = in_channels + num_layers * growth_rate``: the input first, then what each layer added. A layer is
    batch norm, relu, a 1x1 convolution to ``bn_size * growth_rate`` channels, batch norm, relu, a 3x3 convolution,
    dropout of ``drop_rate``. Parameters are named as in torchvision's DenseNet.
    """

    def __init__(
        self,
        num_layers: int,
        in_channels: int,
        growth_rate: int,
        bn_size: int = 4,
        drop_rate: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        for number in range(num_layers):
            width = in_channels + number * growth_rate
            layer = _DenseLayer(width, growth_rate, bn_size, drop_rate, {"device": device, "dtype": dtype})
            self.add_module(f"denselayer{number + 1}", layer)
        self.in_channels = in_channels
        self.out_channels = in_channels + num_layers * growth_rate

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``(N, in_channels, H, W)`` to ``(N, out_channels, H, W)``."""
        features = input
        for layer in self.children():
            features = torch.cat([features, layer(features)], 1)
        return features


class _DenseLayer(Module):
    def __init__(
        self, in_channels: int, growth_rate: int, bn_size: int, drop_rate: float, factory: dict[str, Any]
    ) -> None:
        super().__init__()
        self.norm1 = BatchNorm2d(in_channels, **factory)
        self.relu1 = ReLU()
        self.conv1 = Conv2d(in_channels, bn_size * growth_rate, kernel_size=1, bias=False, **factory)
        self.norm2 = BatchNorm2d(bn_size * growth_rate, **factory)
        self.relu2 = ReLU()
        self.conv2 = Conv2d(bn_size * growth_rate, growth_rate, kernel_size=3, padding=1, bias=False, **factory)
        self.drop_rate = drop_rate

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        bottleneck = self.conv1(self.relu1(self.norm1(features)))
        added = self.conv2(self.relu2(self.norm2(bottleneck)))
        return F.dropout(added, self.drop_rate, self.training) if self.drop_rate else added


class Transition(Sequential):
    """Batch norm, relu, a 1x1 convolution, 2x2 average pooling.

    Takes ``(N, in_channels, H, W)`` and gives ``(N, out_channels, H // 2, W // 2)``. Parameters are named as in
    torchvision's DenseNet.
    """

    def __init__(self, in_channels: int, out_channels: int, device: Any = None, dtype: Any = None) -> None:
        steps: list[tuple[str, torch.nn.Module]] = [
            ("norm", BatchNorm2d(in_channels, device=device, dtype=dtype)),
            ("relu", ReLU()),
            ("conv", Conv2d(in_channels, out_channels, kernel_size=1, bias=False, device=device, dtype=dtype)),
            ("pool", AvgPool2d(2)),
        ]
        super().__init__(OrderedDict(steps))
