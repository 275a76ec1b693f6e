"""Gradient reversal (Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation, 2015) without a reversal layer.

    python examples/domain_adaptation.py

Handwritten digits have labels; the same kind of digits, turned by 30 degrees, have none. A network that learns from the first kind alone is
lost on the second. So a second head learns to tell the two kinds apart, and where its gradient enters the features it is turned round: they
learn to tell the digits, and not to tell the kinds. The network is ordinary torch code. The reversal is one rule for one layer of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import nn
import ops_registry
from ops_registry import packs

DEGREES, STEPS, BATCH = 30, 1500, 64


class Network(torch.nn.Module):
    """Images ``(N, 64)`` to the scores of ten digits and of two domains."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Linear(64, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 32),
            torch.nn.BatchNorm1d(32, affine=False),
        )
        self.digit = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.domain = torch.nn.Sequential(
            torch.nn.Linear(32, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 2),
        )

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.features(images)
        return self.digit(features), self.domain(features)


@dataclass(frozen=True)
class Data:
    """Images ``(N, 64)`` in [0, 1] and their digits: the source, and the target, whose digits are for the test alone."""

    source: torch.Tensor
    source_digits: torch.Tensor
    target: torch.Tensor
    target_digits: torch.Tensor


def load() -> Data:
    """scikit-learn's digits: one half as they are, the other turned."""
    digits = load_digits()
    images, labels = digits.images / 16, torch.tensor(digits.target)
    source, target = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tensor_split(2)
    turned = rotate(images, DEGREES, axes=(1, 2), reshape=False, order=1).clip(0, 1)
    as_rows = [torch.tensor(x, dtype=torch.float32).flatten(1) for x in (images, turned)]
    return Data(as_rows[0][source], labels[source], as_rows[1][target], labels[target])


def train(data: Data, strength: float, steps: int = STEPS, seed: int = 0) -> Network:
    """A network of which the domain head sends back ``-strength`` times its gradient. With 0 the features never hear of it."""
    torch.manual_seed(seed)
    network = nn.track(Network())
    told = [*network.features.parameters(), *network.digit.parameters()]
    groups = [{"params": told, "lr": 1e-3}, {"params": network.domain.parameters(), "lr": 5e-3}]
    optimizer = torch.optim.Adam(groups, betas=(0.5, 0.999))
    domains = torch.arange(2 * BATCH) // BATCH
    # The scope is the layer where the features enter. "domain" would be each of its three layers, and turn the gradient round three times.
    reversal = ops_registry.use(packs.reverse(strength), where="domain.0")
    for _ in range(steps):
        here, there = torch.randint(len(data.source), (BATCH,)), torch.randint(len(data.target), (BATCH,))
        with reversal:
            digit, domain = network(torch.cat([data.source[here], data.target[there]]))
        loss = F.cross_entropy(digit[:BATCH], data.source_digits[here]) + F.cross_entropy(domain, domains)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@dataclass(frozen=True)
class Measured:
    """Accuracies: of the digits in both domains, of the domain by the network's own head, and by a fresh linear one on its features."""

    source: float
    target: float
    domain: float
    fresh: float


@torch.no_grad()
def measure(network: Network, data: Data) -> Measured:
    images = torch.cat([data.source, data.target])
    domains = torch.arange(2).repeat_interleave(torch.tensor([len(data.source), len(data.target)]))
    digit, domain = network(images)
    right = digit.argmax(1) == torch.cat([data.source_digits, data.target_digits])
    features, order = network.features(images), torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    fitted, tested = order.tensor_split(2)
    fresh = LogisticRegression(max_iter=500).fit(features[fitted].numpy(), domains[fitted])
    return Measured(
        source=right[domains == 0].float().mean().item(),
        target=right[domains == 1].float().mean().item(),
        domain=(domain.argmax(1) == domains).float().mean().item(),
        fresh=fresh.score(features[tested].numpy(), domains[tested]),
    )


def main() -> None:
    data = load()
    print(f"{'':18}{'source':>8}{'target':>8}   domain, by the head   by a fresh linear classifier")
    for name, strength in (("source alone", 0.0), ("gradient reversed", 1.0)):
        m = measure(train(data, strength), data)
        print(f"{name:18}{m.source:8.1%}{m.target:8.1%}{m.domain:22.1%}{m.fresh:31.1%}")
    print("The head is driven to chance. A classifier that the features never played against still finds a difference.")


if __name__ == "__main__":
    main()
