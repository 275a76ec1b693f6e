"""The transformer's block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from nn.attention import SelfAttention
from nn.layers import TransformerEncoderLayer


class TransformerBlock(TransformerEncoderLayer):
    """Self-attention and a feed-forward network, each with a residual connection and a layer norm.

    Takes ``(*, L, d_model)`` and gives the same shape. It is
    ``torch.nn.TransformerEncoderLayer(..., batch_first=True)`` in its arguments, its parameters and its values, with
    every step in the graph and any number of batch dimensions. Layer norm comes after each part, or with ``norm_first``
    before it.
    """

    self_attn: SelfAttention

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[torch.Tensor], torch.Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, True, norm_first, bias, device, dtype
        )
        # torch has made its own attention, with the same parameters; the way through them is ours.
        self.self_attn.__class__ = SelfAttention

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """Masks are those of ``SelfAttention``; raises as it does."""

        def attend(x: torch.Tensor) -> Any:
            return self.dropout1(self.self_attn(x, src_mask, src_key_padding_mask, is_causal))

        def feed(x: torch.Tensor) -> Any:
            return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))

        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + feed(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + feed(x))
