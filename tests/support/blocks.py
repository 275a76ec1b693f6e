"""Models of repeated blocks, and their graphs."""

from __future__ import annotations

import torch

import nn
import tracer


class Attention(torch.nn.Module):
    """Self-attention of ``d`` features in ``heads`` heads, written out."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(d, 3 * d)
        self.out = torch.nn.Linear(d, d)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, d = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, d // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, d))


class Block(torch.nn.Module):
    """One block of a transformer; ``scaled`` makes a call more."""

    def __init__(self, d: int = 16, heads: int = 2, *, scaled: bool = False) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(d)
        self.attention = Attention(d, heads)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(d, 4 * d), torch.nn.GELU(), torch.nn.Linear(4 * d, d))
        self.scaled = scaled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        y = self.mlp(x)
        return x + (y * 2 if self.scaled else y)


class Language(torch.nn.Module):
    """A small language model: an embedding, blocks, a head."""

    def __init__(self, blocks: list[torch.nn.Module], d: int = 16) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(30, d)
        self.layers = torch.nn.ModuleList(blocks)
        self.head = torch.nn.Linear(d, 30, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def language_graph(*scaled: bool) -> tuple[tracer.Graph, torch.Tensor]:
    """The graph of a step of ``Language`` with so many blocks, up to its loss, which holds it."""
    model = nn.track(Language([Block(scaled=s) for s in scaled]))
    tokens = torch.randint(30, (2, 5))
    with tracer.Graph(sites=True) as graph:
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    return graph, loss
