"""``nn.Residual``."""

from __future__ import annotations

import pytest
import torch
from support.training import accuracy, compare_modules, digits, fit

import nn
import tracer


class Stock(torch.nn.Module):
    """The same in torch."""

    def __init__(self, body: torch.nn.Module, shortcut: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + (x if self.shortcut is None else self.shortcut(x))


@pytest.mark.parametrize("shortcut", [False, True])
def test_values_and_gradients_are_torchs(shortcut: bool) -> None:
    width = 3 if shortcut else 2
    body = lambda: torch.nn.Sequential(torch.nn.Conv2d(2, width, 3, padding=1), torch.nn.Tanh())  # noqa: E731
    cut = lambda: torch.nn.Conv2d(2, width, 1) if shortcut else None  # noqa: E731
    compare_modules(
        nn.Residual(body(), cut()).double(),
        Stock(body(), cut()).double(),
        [torch.randn(2, 2, 4, 4, dtype=torch.float64)],
    )


def test_the_body_gets_further_arguments() -> None:
    block = nn.Residual(nn.SelfAttention(4, 2))
    x = torch.randn(3, 4)
    causal = block(x, is_causal=True)
    torch.testing.assert_close(causal, x + block.body(x, is_causal=True))


@pytest.mark.parametrize("widths", [(4, 5), (4, 1)])
def test_shapes_that_differ_are_refused(widths: tuple[int, int]) -> None:
    with pytest.raises(nn.ShapeError, match=rf"\(2, {widths[1]}\) and the shortcut \(2, 4\)"):
        nn.Residual(nn.Linear(*widths))(torch.ones(2, 4))


def test_it_trains_on_digits_to_96_percent() -> None:
    images, labels, test_images, test_labels = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.Residual(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))),
        nn.Residual(
            nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, padding=1)), nn.Conv2d(8, 16, 1, 2)
        ),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )
    assert all(type(p) is tracer.Tensor for p in model.parameters())
    fit(model, images, labels, epochs=5)
    assert accuracy(model, test_images, test_labels) >= 0.96
