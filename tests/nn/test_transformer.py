"""``nn.TransformerBlock`` beside ``torch.nn.TransformerEncoderLayer``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.checking import plain
from support.training import accuracy, compare_modules, digits, fit

import nn
import tracer

KINDS: dict[str, dict[str, Any]] = {
    "norm last": {},
    "norm first": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "own activation": {"activation": torch.tanh},
    "no bias": {"bias": False},
    "epsilon": {"layer_norm_eps": 0.1, "norm_first": True},
}
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"src_mask": CAUSAL, "is_causal": True},
    "padding": {"src_key_padding_mask": PADDING},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
}


def torchs(**kwargs: Any) -> torch.nn.TransformerEncoderLayer:
    return torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64, **kwargs)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_values_and_gradients_are_torchs(kind: dict[str, Any], masks: dict[str, Any]) -> None:
    ours = nn.TransformerBlock(8, 2, 16, dropout=0.0, dtype=torch.float64, **kind)
    theirs = torchs(**kind)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    compare_modules(ours, theirs, [x], lambda x: ours(x, **masks), lambda x: theirs(x, **masks))


def test_initial_values_and_names_are_torchs() -> None:
    torch.manual_seed(0)
    ours = nn.TransformerBlock(8, 2, 16)
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert all(type(p) is tracer.Tensor for p in ours.parameters())


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_any_batch_dimensions(batch: tuple[int, ...]) -> None:
    block = nn.TransformerBlock(8, 2, 16, dropout=0.0, dtype=torch.float64)
    x = torch.randn(*batch, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(plain(block(x)).view(-1, 5, 8), plain(block(x.view(-1, 5, 8))))


def test_every_step_stands_in_the_graph_in_evaluation_too() -> None:
    block = nn.TransformerBlock(8, 2, 16).eval()
    with tracer.Graph() as graph:
        _kept = block(tracer.tensor(torch.randn(2, 5, 8), requires_grad=True)).sum()
    counts = graph.counts()
    assert counts["linear"] == 4 and counts["matmul"] == 2 and counts["softmax"] == 1


def test_torchs_encoder_stacks_it() -> None:
    block = nn.TransformerBlock(8, 2, 16, dropout=0.0, dtype=torch.float64)
    ours, theirs = (
        encoder.double() for encoder in (nn.TransformerEncoder(block, 2), torch.nn.TransformerEncoder(torchs(), 2))
    )
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    calls = [lambda x, m=m: m(x, CAUSAL, src_key_padding_mask=PADDING) for m in (ours, theirs)]
    compare_modules(ours, theirs, [x], *calls)


def test_another_width_is_refused() -> None:
    with pytest.raises(nn.ShapeError, match=r"\(2, 5, 7\)"):
        nn.TransformerBlock(8, 2)(torch.ones(2, 5, 7))


class Rows(nn.Module):
    """Digits read as sequences of eight rows of eight pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.places = nn.Parameter(torch.randn(8, 32) * 0.1)
        self.block = nn.TransformerBlock(32, 4, 64, norm_first=True)
        self.head = nn.Linear(8 * 32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(images.squeeze(1)) + self.places).flatten(1))


def test_it_trains_on_digits_to_96_percent() -> None:
    images, labels, test_images, test_labels = digits()
    model = Rows()
    fit(model, images, labels, epochs=8, lr=5e-3)
    assert accuracy(model, test_images, test_labels) >= 0.96
