"""Multi-head attention, composed of matmul, softmax and linear, so that every step of it stands in the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F

from nn.errors import ArgumentError, ShapeError
from nn.layers import MultiheadAttention


class _Attention(MultiheadAttention):
    """``torch.nn.MultiheadAttention`` in its parameters, their names and initialisation; the forward pass is ours."""

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        key_padding_mask: torch.Tensor | None,
        is_causal: bool,
        need_weights: bool,
        average_attn_weights: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The attention of the projected ``(*, L, E)`` to ``(*, S, E)``, and its weights where they are asked for."""
        query, key, value = self._split(query), self._split(key), self._split(value)
        scores = query * (1 / math.sqrt(self.head_dim)) @ key.transpose(-2, -1)
        mask = _merge(self._get_name(), scores, attn_mask, key_padding_mask)
        if is_causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(ahead, -math.inf)
            mask = mask if mask is None else mask.masked_fill(ahead, -math.inf)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            # A query that may look nowhere gets 0, as in F.scaled_dot_product_attention; a softmax over nothing is nan.
            nowhere = (mask == -math.inf).all(-1, keepdim=True)
            scores = scores.masked_fill(nowhere, 0)
            weights = (scores + mask.masked_fill(nowhere, 0)).softmax(-1).masked_fill(nowhere, 0)
        weights = F.dropout(weights, self.dropout, self.training)
        joined = (weights @ value).transpose(-3, -2).flatten(-2)
        output = F.linear(joined, self.out_proj.weight, self.out_proj.bias)
        if not need_weights:
            return output
        return output, weights.mean(-3) if average_attn_weights else weights

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        """``(*, L, E)`` to ``(*, heads, L, E / heads)``."""
        return projected.reshape(*projected.shape[:-1], self.num_heads, self.head_dim).transpose(-3, -2)

    def _expect(self, name: str, given: torch.Tensor, width: int) -> None:
        if given.dim() < 2 or given.shape[-1] != width:
            raise ShapeError(
                f"{self._get_name()}: {name} must be (*, length, {width}), and has shape {tuple(given.shape)}"
            )

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}"


class SelfAttention(_Attention):
    """Multi-head attention of a sequence to itself: ``(*, L, embed_dim)`` to ``(*, L, embed_dim)``.

    Any number of batch dimensions comes first. On the same weights it is
    ``torch.nn.MultiheadAttention(..., batch_first=True)`` called with one tensor thrice, and it loads that module's
    ``state_dict``. ``dropout`` is that of the attention weights while training.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first=True, device=device, dtype=dtype)

    def forward(  # type: ignore[override]
        self,
        input: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        average_attn_weights: bool = True,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The attended sequence, and with ``need_weights`` the attention weights.

        The weights are ``(*, L, L)``, or ``(*, heads, L, L)`` if not averaged. Masks are as for
        ``torch.nn.MultiheadAttention``: bool ones are True where a query must not look, those of floating point are
        added to the scores. ``attn_mask`` is ``(L, L)``, ``(prod(*) * heads, L, L)`` or broadcasts to
        ``(*, heads, L, L)``; ``key_padding_mask`` broadcasts to ``(*, L)``. ``is_causal`` by itself keeps every query
        from looking ahead. A query that may look nowhere gets zero weights. Raises ``ShapeError`` for other shapes,
        ``ArgumentError`` for integer masks.
        """
        self._expect("input", input, self.embed_dim)
        query, key, value = F.linear(input, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        return self._attend(
            query, key, value, attn_mask, key_padding_mask, is_causal, need_weights, average_attn_weights
        )


class CrossAttention(_Attention):
    """Multi-head attention of one sequence to another.

    Takes ``(*, L, embed_dim)`` and ``(*, S, kdim)`` and gives ``(*, L, embed_dim)``. Any number of batch dimensions
    comes first. On the same weights it is ``torch.nn.MultiheadAttention(..., batch_first=True)``, and it loads that
    module's ``state_dict``. ``kdim`` and ``vdim``, the widths of keys and values, are ``embed_dim`` unless given.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim, batch_first=True, device=device, dtype=dtype
        )

    def forward(  # type: ignore[override]
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor | None = None,
        attn_mask: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        average_attn_weights: bool = True,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """As ``SelfAttention.forward``, from ``query`` to ``key`` and ``value``, by default ``key``.

        Batch dimensions broadcast. Raises ``ShapeError`` where they do not, or ``key`` and ``value`` differ in length.
        """
        value = key if value is None else value
        self._expect("query", query, self.embed_dim)
        self._expect("key", key, self.kdim)
        self._expect("value", value, self.vdim)
        fits = _broadcast_together(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        if not fits or key.shape[-2] != value.shape[-2]:
            raise ShapeError(
                f"CrossAttention: query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} "
                f"must agree in their batch dimensions, key and value in their length"
            )
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        query, key, value = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        return self._attend(
            query, key, value, attn_mask, key_padding_mask, is_causal, need_weights, average_attn_weights
        )


def _merge(
    name: str, scores: torch.Tensor, attn_mask: torch.Tensor | None, key_padding_mask: torch.Tensor | None
) -> torch.Tensor | None:
    """Both masks as one that is added to ``scores (*, heads, L, S)``."""
    merged = None
    if attn_mask is not None:
        *batch, heads = scores.shape[:-2]
        if attn_mask.dim() == 3 and attn_mask.shape[0] == math.prod(batch) * heads:
            attn_mask = attn_mask.reshape(*batch, heads, *attn_mask.shape[1:])
        _check_mask(f"{name}: attn_mask", attn_mask, scores.shape)
        merged = _additive(f"{name}: attn_mask", attn_mask, scores.dtype)
    if key_padding_mask is not None:
        _check_mask(f"{name}: key_padding_mask", key_padding_mask, (*scores.shape[:-3], scores.shape[-1]))
        padding = _additive(f"{name}: key_padding_mask", key_padding_mask, scores.dtype)[..., None, None, :]
        merged = padding if merged is None else merged + padding
    return merged


# ``torch.broadcast_shapes`` would do for both of these checks, and imports sympy (half a second) at its first call.
def _broadcast_together(*shapes: Sequence[int]) -> bool:
    """Whether tensors of these shapes broadcast."""
    columns = zip_longest(*map(reversed, shapes), fillvalue=1)
    return all(len({size for size in column if size != 1}) <= 1 for column in columns)


def _check_mask(name: str, mask: torch.Tensor, wanted: tuple[int, ...]) -> None:
    """Raise ``ShapeError`` unless ``mask`` broadcasts to the shape ``wanted``."""
    pairs = zip(reversed(mask.shape), reversed(wanted), strict=False)
    if mask.dim() > len(wanted) or any(size not in (1, to) for size, to in pairs):
        raise ShapeError(f"{name} must broadcast to {tuple(wanted)}, and has shape {tuple(mask.shape)}")


def _additive(name: str, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
    if not mask.dtype.is_floating_point:
        raise ArgumentError(f"{name} must be bool or of floating point, and is {mask.dtype}")
    return mask
