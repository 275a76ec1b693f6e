"""``nn.DenseBlock`` and ``nn.Transition``."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from support.training import accuracy, compare_modules, digits, fit

import nn


class StockLayer(torch.nn.Module):
    """A layer of DenseNet-BC, written with torch's own modules under torchvision's names."""

    def __init__(self, width: int, growth: int, bn_size: int) -> None:
        super().__init__()
        self.norm1 = torch.nn.BatchNorm2d(width)
        self.conv1 = torch.nn.Conv2d(width, bn_size * growth, 1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(bn_size * growth)
        self.conv2 = torch.nn.Conv2d(bn_size * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class StockBlock(torch.nn.ModuleDict):
    def __init__(self, layers: int, width: int, growth: int, bn_size: int) -> None:
        super().__init__()
        for i in range(layers):
            self[f"denselayer{i + 1}"] = StockLayer(width + i * growth, growth, bn_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = [x]
        for layer in self.values():
            seen.append(layer(torch.cat(seen, 1)))
        return torch.cat(seen, 1)


@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_torchs(training: bool) -> None:
    ours, theirs = nn.DenseBlock(3, 4, 2, bn_size=3), StockBlock(3, 4, 2, 3)
    compare_modules(
        ours.double().train(training),
        theirs.double().train(training),
        [torch.randn(2, 4, 5, 6, dtype=torch.float64)],
    )


def test_a_transition_is_torchs_sequential() -> None:
    theirs = torch.nn.Sequential(
        OrderedDict(
            norm=torch.nn.BatchNorm2d(4),
            relu=torch.nn.ReLU(),
            conv=torch.nn.Conv2d(4, 2, 1, bias=False),
            pool=torch.nn.AvgPool2d(2),
        )
    )
    compare_modules(nn.Transition(4, 2).double(), theirs.double(), [torch.randn(2, 4, 5, 6, dtype=torch.float64)])


def test_channels() -> None:
    block = nn.DenseBlock(3, 5, 4)
    x = torch.randn(2, 5, 7, 7)
    y = block(x)
    assert block.out_channels == 17 and y.shape == (2, 17, 7, 7) and torch.equal(y[:, :5], x)
    assert nn.Transition(17, 8)(y).shape == (2, 8, 3, 3)


def test_dropout_acts_while_training_only() -> None:
    block = nn.DenseBlock(1, 2, 2, drop_rate=1.0)
    x = torch.randn(2, 2, 4, 4)
    assert not block(x)[:, 2:].any()
    assert block.eval()(x)[:, 2:].any()


def test_other_ranks_get_torchs_error() -> None:
    with pytest.raises(ValueError, match="expected 4D input"):
        nn.DenseBlock(1, 2, 2)(torch.ones(2, 4, 4))


def test_they_train_on_digits_to_96_percent() -> None:
    images, labels, test_images, test_labels = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.DenseBlock(2, 8, 4, bn_size=2),
        nn.Transition(16, 12),
        nn.DenseBlock(2, 12, 4, bn_size=2),
        nn.BatchNorm2d(20),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * 16, 10),
    )
    fit(model, images, labels, epochs=4)
    assert accuracy(model, test_images, test_labels) >= 0.96
