"""Claim: on real networks glassgrad takes torch's time and torch's memory.

A ResNet-18-shaped CNN at 32x3x64x64, a 4-layer transformer at 8x128x256 and an LSTM over 200 steps, its cells written
out and its states written into a buffer, one training step each. Time is measured in turns in one process, peak memory
in a fresh process each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from training import Step, run, training_step


class Block(torch.nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(outputs)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(outputs)
        self.shortcut: torch.nn.Module = torch.nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = torch.nn.Sequential(
                torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False), torch.nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18() -> torch.nn.Module:
    """Four stages of two basic blocks, ``(N, 3, H, W)`` to ``(N, 10)``."""
    layers: list[torch.nn.Module] = [
        torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for i in range(2):
            layers.append(Block(width, outputs, 2 if stage and not i else 1))
            width = outputs
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 10))


def transformer() -> torch.nn.Module:
    """Four encoder layers, ``(N, L, 256)`` to ``(N, L, 10)``."""
    layer = torch.nn.TransformerEncoderLayer(
        256, 8, 1024, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )
    return torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.nn.Linear(256, 10)
    )


class LSTM(torch.nn.Module):
    """An LSTM whose cells are written out, as people write them."""

    def __init__(self, inputs: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = torch.nn.Linear(inputs + hidden, 4 * hidden)
        self.head = torch.nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = x.new_zeros(x.shape[0], x.shape[1], self.hidden)
        h = c = x.new_zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states[:, t] = h
        return self.head(states)


def make_step(network: str, engine: str) -> Step:
    """A training step of one of the networks."""
    torch.manual_seed(0)
    if network == "cnn":
        model, data, target = resnet18(), torch.randn(32, 3, 64, 64), torch.randint(10, (32,))
    elif network == "lstm":
        model, data, target = LSTM(), torch.randn(32, 200, 64), torch.randint(10, (32 * 200,))
    else:
        model, data, target = transformer(), torch.randn(8, 128, 256), torch.randint(10, (8 * 128,))
    return training_step(model, engine, data, target, momentum=0.9)


TITLES = {
    "cnn": "ResNet-18-shaped CNN, 32x3x64x64",
    "transformer": "4-layer transformer, 8x128x256",
    "lstm": "LSTM written out, 32x200x64",
}

if __name__ == "__main__":
    run(__file__, __doc__, make_step, TITLES, rounds=15, runs=5)
