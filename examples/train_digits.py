"""Train a network on real handwritten digits with glassgrad, then look under the lid.

Run with ``make demo``. Exits non-zero when the accuracy, the time or the gradients are not what they should be.
"""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import nn
import ops_registry
import tracer

EPOCHS, BATCH, SEED = 15, 64, 0
REQUIRED_ACCURACY, ALLOWED_SECONDS, ALLOWED_DIFFERENCE = 0.97, 60.0, 1e-9

console = Console()


class DigitNet(torch.nn.Module):
    """Ordinary torch code: convolutions, batch norm, a skip connection, relu, pooling, dropout, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = torch.nn.BatchNorm2d(16)
        self.conv = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.norm2 = torch.nn.BatchNorm2d(16)
        self.widen = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = torch.nn.Dropout(0.2)
        self.head = torch.nn.Linear(32 * 2 * 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.stem(images)))
        x = F.relu(x + self.norm2(self.conv(x)))
        x = F.max_pool2d(x, 2)
        x = F.max_pool2d(F.relu(self.widen(x)), 2)
        return self.head(self.dropout(x.flatten(1)))


@dataclass(frozen=True)
class Data:
    """Images ``(N, 1, 8, 8)`` in [0, 1] and their digits."""

    train_images: torch.Tensor
    train_digits: torch.Tensor
    test_images: torch.Tensor
    test_digits: torch.Tensor


def load() -> Data:
    """scikit-learn's bundled digits, split 75/25."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(
        torch.arange(len(labels)).numpy(), test_size=0.25, random_state=SEED, stratify=digits.target
    )
    train, test = torch.from_numpy(train), torch.from_numpy(test)
    return Data(images[train], labels[train], images[test], labels[test])


def accuracy(model: torch.nn.Module, images: torch.Tensor, digits: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == digits).float().mean().item()
    model.train()
    return right


def train(model: torch.nn.Module, data: Data) -> float:
    """Train with a stock optimiser and schedule; returns the test accuracy."""
    steps = -(-len(data.train_images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=EPOCHS * steps)
    columns = (
        TextColumn("epoch {task.fields[epoch]:>2}/{task.fields[epochs]}"),
        BarColumn(),
        TextColumn(
            "loss {task.fields[loss]:.4f}  test accuracy {task.fields[accuracy]:6.2%}  "
            "{task.fields[rate]:,.0f} examples/s"
        ),
        TimeElapsedColumn(),
    )
    tested = 0.0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=EPOCHS * steps, epoch=0, epochs=EPOCHS, loss=0.0, accuracy=0.0, rate=0.0)
        for epoch in range(1, EPOCHS + 1):
            started, total = time.perf_counter(), 0.0
            for rows in torch.randperm(len(data.train_images)).split(BATCH):
                loss = F.cross_entropy(model(data.train_images[rows]), data.train_digits[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item() * len(rows)
                progress.advance(task)
            rate = len(data.train_images) / (time.perf_counter() - started)
            tested = accuracy(model, data.test_images, data.test_digits)
            progress.update(task, epoch=epoch, loss=total / len(data.train_images), accuracy=tested, rate=rate)
    return tested


def compare_with_torch(model: torch.nn.Module, data: Data) -> float:
    """The largest relative difference between our gradients of one batch and torch's own, in float64."""
    reference = DigitNet().double()
    reference.load_state_dict(model.state_dict())
    ours = nn.track(copy.deepcopy(reference))
    images, digits = data.train_images[:BATCH].double(), data.train_digits[:BATCH]
    for twin in (reference, ours):
        torch.manual_seed(SEED)  # the same dropout mask in both
        F.cross_entropy(twin(images), digits).backward()
    table = Table(
        "parameter",
        "|gradient|",
        "|ours - torch|",
        "relative",
        title="One batch in float64 beside torch's own autograd",
    )
    worst = 0.0
    for (name, native), tracked in zip(reference.named_parameters(), ours.parameters(), strict=True):
        assert native.grad is not None and tracked.grad is not None
        scale, difference = native.grad.abs().max().item(), (native.grad - tracked.grad).abs().max().item()
        if scale < 1e-12:  # a bias in front of a batch norm has no effect: its gradient is rounding, in torch as here
            table.add_row(name, f"{scale:.3e}", f"{difference:.3e}", "zero in both")
            worst = max(worst, difference)
            continue
        worst = max(worst, difference / scale)
        table.add_row(name, f"{scale:.3e}", f"{difference:.3e}", f"{difference / scale:.3e}")
    console.print(table)
    return worst


def show_graph(model: torch.nn.Module, data: Data) -> None:
    """The op kinds that one forward pass leaves in the graph, and what they keep for backward."""
    with tracer.Graph() as graph:
        loss = F.cross_entropy(model(data.train_images[:BATCH]), data.train_digits[:BATCH])
    table = Table(
        "op", "calls", "bytes kept", title=f"The graph of one forward pass: {len(graph)} calls, loss {loss.item():.4f}"
    )
    for row in graph.summary()[:10]:
        table.add_row(row.op, str(row.count), f"{row.kept_bytes:,}")
    console.print(table)


def guided_relu(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Guided backpropagation: only positive gradients pass through an active unit."""
    return grad.clamp(min=0) * (result > 0)


def input_gradient(model: torch.nn.Module, data: Data) -> torch.Tensor:
    """The gradient of the winning scores with respect to the first test images."""
    images = tracer.tensor(data.test_images[:16], requires_grad=True)
    (gradient,) = torch.autograd.grad(model(images).amax(1).sum(), images)
    return gradient


def replace_a_rule(model: torch.nn.Module, data: Data) -> float:
    """How far guided relu moves the input gradient of the same, unedited model."""
    model.eval()
    plain = input_gradient(model, data)
    with ops_registry.use({torch.relu: guided_relu}):
        guided = input_gradient(model, data)
    moved = ((guided - plain).norm() / plain.norm()).item()
    console.print(
        f"Guided relu in two lines, the model untouched: the input gradient moved by [bold]{moved:.1%}[/bold] "
        f"of its length."
    )
    return moved


def main() -> int:
    torch.manual_seed(SEED)
    data = load()
    model = nn.track(DigitNet())
    started = time.perf_counter()
    tested = train(model, data)
    seconds = time.perf_counter() - started
    console.print(f"Test accuracy [bold]{tested:.2%}[/bold] on {len(data.test_digits)} digits after {seconds:.1f} s.\n")
    worst = compare_with_torch(model, data)
    console.print(f"Largest relative difference: [bold]{worst:.1e}[/bold]\n")
    show_graph(model, data)
    console.print()
    moved = replace_a_rule(model, data)

    failures = []
    if tested < REQUIRED_ACCURACY:
        failures.append(f"accuracy {tested:.2%} is below {REQUIRED_ACCURACY:.0%}")
    if seconds > ALLOWED_SECONDS:
        failures.append(f"training took {seconds:.0f} s, more than {ALLOWED_SECONDS:.0f} s")
    if not worst <= ALLOWED_DIFFERENCE:
        failures.append(f"gradients differ from torch's by {worst:.1e}, more than {ALLOWED_DIFFERENCE:.0e}")
    if not moved > 0:
        failures.append("replacing the rule of relu did not move the input gradient")
    for failure in failures:
        console.print(f"[bold red]failed:[/bold red] {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
