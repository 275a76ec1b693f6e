"""A network whose weights are -1, 0 or 1 and whose hidden units are -1 or 1, trained with the straight-through rule.

    python examples/quantised_network.py

``round`` and ``sign`` are flat, so their derivative is zero and nothing that stands before them learns. The straight-through rule passes
the gradient on as if they were not there, inside the range beyond which a step has no effect. The network is ordinary torch code. It is
trained twice: without the rule, and with it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import nn
import ops_registry
from ops_registry import packs

EPOCHS, BATCH = 10, 64


class TernaryLinear(torch.nn.Linear):
    """A linear layer that computes with its weights clamped and rounded to -1, 0 and 1."""

    def reset_parameters(self) -> None:
        torch.nn.init.uniform_(self.weight, -1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, torch.round(self.weight.clamp(-1, 1)))


class Network(torch.nn.Module):
    """Images ``(N, 64)`` to ten scores."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = TernaryLinear(64, width, bias=False)
        self.second = TernaryLinear(width, width, bias=False)
        self.third = TernaryLinear(width, 10, bias=False)
        self.norm1 = torch.nn.BatchNorm1d(width)
        self.norm2 = torch.nn.BatchNorm1d(width)
        self.norm3 = torch.nn.BatchNorm1d(10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.sign(self.norm1(self.first(images)))
        x = torch.sign(self.norm2(self.second(x)))
        return self.norm3(self.third(x))


Sets = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def load() -> Sets:
    """scikit-learn's digits, split 75/25: images ``(N, 64)`` in [0, 1], and their labels."""
    digits = load_digits()
    sets = train_test_split(digits.data / 16, digits.target, test_size=0.25, random_state=0, stratify=digits.target)
    train_images, test_images, train_labels, test_labels = (torch.tensor(part) for part in sets)
    return train_images.float(), train_labels, test_images.float(), test_labels


def train(data: Sets, use: AbstractContextManager[object], epochs: int = EPOCHS) -> tuple[float, dict[str, float]]:
    """Train a network whose calls are made inside ``use``.

    Returns its accuracy on the test images, and how far the weights of each layer have moved from where they began, on average.
    """
    torch.manual_seed(0)
    images, labels, test_images, test_labels = data
    network = nn.track(Network())
    layers = {name: layer for name, layer in network.named_children() if isinstance(layer, TernaryLinear)}
    began = {name: layer.weight.detach().clone() for name, layer in layers.items()}
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(BATCH):
            with use:
                scores = network(images[rows])
            optimizer.zero_grad()
            F.cross_entropy(scores, labels[rows]).backward()
            optimizer.step()
            for layer in layers.values():  # a weight beyond 1 would have no effect, and no gradient
                layer.weight.detach().clamp_(-1, 1)
        schedule.step()
    network.eval()
    with torch.no_grad():
        accuracy = (network(test_images).argmax(1) == test_labels).float().mean().item()
    return accuracy, {name: (layer.weight - began[name]).abs().mean().item() for name, layer in layers.items()}


def straight_through() -> ops_registry.use:
    return ops_registry.use(packs.straight_through(-1, 1))


def main() -> None:
    data = load()
    for name, use in {"without": nullcontext(), "straight-through": straight_through()}.items():
        accuracy, moved = train(data, use)
        print(f"{name:17} accuracy {accuracy:6.1%}; the weights moved by", end="")
        print(*(f" {distance:.3f} ({layer})" for layer, distance in moved.items()), sep=",")


if __name__ == "__main__":
    main()
