"""``nn.SelfAttention`` and ``nn.CrossAttention`` beside ``torch.nn.MultiheadAttention``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import plain
from support.training import accuracy, compare_modules, data, digits, fit

import nn
import tracer

N, L, S, E, H = 2, 5, 3, 8, 2


def torchs(embed_dim: int = E, heads: int = H, **kwargs: Any) -> torch.nn.MultiheadAttention:
    return torch.nn.MultiheadAttention(embed_dim, heads, batch_first=True, dtype=torch.float64, **kwargs)


CAUSAL = torch.ones(L, L, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
MASKS: dict[str, dict[str, torch.Tensor]] = {
    "none": {},
    "bool": {"attn_mask": CAUSAL},
    "float": {"attn_mask": torch.linspace(-1, 1, L * L, dtype=torch.float64).view(L, L)},
    "of heads": {"attn_mask": torch.linspace(-1, 1, N * H * L * L, dtype=torch.float64).view(N * H, L, L)},
    "padding": {"key_padding_mask": PADDING},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_is_torchs(masks: dict[str, torch.Tensor], bias: bool) -> None:
    theirs = torchs(bias=bias)
    compare_modules(
        ours := nn.SelfAttention(E, H, bias=bias, dtype=torch.float64),
        theirs,
        [data(N, L, E)],
        call_ours=lambda x: ours(x, **masks),
        call_theirs=lambda x: theirs(x, x, x, **masks)[0],
    )


@pytest.mark.parametrize("average", [True, False])
def test_the_weights_are_torchs(average: bool) -> None:
    theirs = torchs()
    compare_modules(
        ours := nn.SelfAttention(E, H, dtype=torch.float64),
        theirs,
        [data(N, L, E)],
        call_ours=lambda x: ours(x, need_weights=True, average_attn_weights=average)[1],
        call_theirs=lambda x: theirs(x, x, x, average_attn_weights=average)[1],
    )


@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 4}, {"kdim": 6}], ids=["same", "all differ", "keys differ"])
@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention_is_torchs(widths: dict[str, int], bias: bool) -> None:
    theirs = torchs(bias=bias, **widths)
    padding = torch.tensor([[False, True, False], [False, False, True]])
    compare_modules(
        ours := nn.CrossAttention(E, H, bias=bias, dtype=torch.float64, **widths),
        theirs,
        [data(N, L, E), data(N, S, widths.get("kdim", E)), data(N, S, widths.get("vdim", E))],
        call_ours=lambda q, k, v: ours(q, k, v, key_padding_mask=padding),
        call_theirs=lambda q, k, v: theirs(q, k, v, key_padding_mask=padding)[0],
    )


def test_values_are_the_keys_unless_given() -> None:
    attention = nn.CrossAttention(E, H, dtype=torch.float64)
    q, k = data(N, L, E), data(N, S, E)
    torch.testing.assert_close(attention(q, k), attention(q, k, k))


def test_dropout_is_torchs() -> None:
    ours, theirs = nn.SelfAttention(E, H, dropout=0.5, dtype=torch.float64), torchs(dropout=0.5)
    theirs.load_state_dict(ours.state_dict())
    x = data(N, L, E)
    torch.manual_seed(0)
    y = ours(x)
    torch.manual_seed(0)
    torch.testing.assert_close(plain(y), theirs(x, x, x)[0].detach())
    assert torch.equal(ours.eval()(x), ours(x))


def test_initial_values_and_names_are_torchs() -> None:
    torch.manual_seed(0)
    ours = nn.CrossAttention(E, H, kdim=3)
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, H, kdim=3)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert all(type(p) is tracer.Tensor for p in ours.parameters())


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3), (0,)])
def test_any_batch_dimensions(batch: tuple[int, ...]) -> None:
    attention = nn.SelfAttention(E, H, dtype=torch.float64)
    x, padding = data(*batch, L, E), torch.rand(*batch, L) > 0.7
    y, weights = attention(x, key_padding_mask=padding, need_weights=True)
    assert y.shape == x.shape and weights.shape == (*batch, L, L)
    flat = attention(x.view(-1, L, E) if x.numel() else x, key_padding_mask=padding.reshape(-1, L))
    torch.testing.assert_close(plain(y).reshape(-1, L, E), plain(flat).reshape(-1, L, E))


def test_batch_dimensions_of_query_and_key_broadcast() -> None:
    attention = nn.CrossAttention(E, H, dtype=torch.float64)
    q, k = data(4, 1, L, E), data(3, S, E)
    torch.testing.assert_close(attention(q, k)[2, 1], attention(q[2, 0], k[1]))


def test_is_causal_keeps_queries_from_looking_ahead() -> None:
    attention = nn.SelfAttention(E, H, dtype=torch.float64)
    x = data(N, L, E)
    torch.testing.assert_close(attention(x, is_causal=True), attention(x, attn_mask=CAUSAL))
    both = attention(x, is_causal=True, key_padding_mask=PADDING)
    torch.testing.assert_close(both, attention(x, attn_mask=CAUSAL, key_padding_mask=PADDING))


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_query_that_may_look_nowhere_gets_what_torch_gives(is_causal: bool) -> None:
    ours, theirs = nn.SelfAttention(E, H, dtype=torch.float64), torchs()
    theirs.load_state_dict(ours.state_dict())
    values = data(N, L, E)
    padding = torch.tensor([[True] * 5, [True] + [False] * 4])
    x, native = tracer.tensor(values, requires_grad=True), values.clone().requires_grad_()
    y = ours(x, key_padding_mask=padding, is_causal=is_causal)
    mask = padding[:, None, None, :] | (CAUSAL if is_causal else torch.zeros_like(CAUSAL))
    q, k, v = (
        t.view(N, L, H, E // H).transpose(1, 2)
        for t in F.linear(native, theirs.in_proj_weight, theirs.in_proj_bias).chunk(3, -1)
    )
    attended = F.scaled_dot_product_attention(q, k, v, ~mask).transpose(1, 2).flatten(2)
    expected = theirs.out_proj(attended)
    torch.testing.assert_close(plain(y), expected.detach())
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, native.grad)
    assert y.isfinite().all()


def test_a_learned_mask_gets_its_gradient() -> None:
    attention = nn.SelfAttention(E, H, dtype=torch.float64)
    bias = tracer.tensor(data(H, L, L), requires_grad=True)
    x = data(N, L, E)
    attention(x, attn_mask=bias).square().sum().backward()
    twin, native = torchs(), plain(bias).clone().requires_grad_()
    twin.load_state_dict(attention.state_dict())
    twin(x, x, x, attn_mask=native.repeat(N, 1, 1))[0].square().sum().backward()
    torch.testing.assert_close(bias.grad, native.grad)


def test_every_step_stands_in_the_graph() -> None:
    with tracer.Graph() as graph:
        _kept = nn.SelfAttention(E, H)(torch.randn(N, L, E)).sum()
    counts = graph.counts()
    assert counts["linear"] == 2 and counts["matmul"] == 2 and counts["softmax"] == 1


def test_second_derivatives() -> None:
    attention = nn.SelfAttention(4, 2, dtype=torch.float64)
    x = data(2, 3, 4)
    torch.testing.assert_close(
        second_derivative(attention, x, tracer.tensor), second_derivative(twin_of(attention), x, native_leaf)
    )


def twin_of(attention: nn.SelfAttention) -> Callable[[torch.Tensor], torch.Tensor]:
    twin = torchs(4, 2)
    twin.load_state_dict(attention.state_dict())
    return lambda x: twin(x, x, x)[0]


def native_leaf(values: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return values.clone().requires_grad_(requires_grad)


def second_derivative(function: Any, values: torch.Tensor, make: Any) -> torch.Tensor:
    x = make(values, requires_grad=True)
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    first.square().sum().backward()
    return x.grad


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "width": (
        lambda: nn.SelfAttention(E, H)(torch.ones(L, 7)),
        nn.ShapeError,
        r"input must be \(\*, length, 8\).*\(5, 7\)",
    ),
    "rank": (lambda: nn.SelfAttention(E, H)(torch.ones(E)), nn.ShapeError, r"shape \(8,\)"),
    "lengths": (
        lambda: nn.CrossAttention(E, H)(torch.ones(L, E), torch.ones(3, E), torch.ones(4, E)),
        nn.ShapeError,
        r"key \(3, 8\) and value \(4, 8\)",
    ),
    "batches": (
        lambda: nn.CrossAttention(E, H)(torch.ones(2, L, E), torch.ones(3, L, E)),
        nn.ShapeError,
        r"query \(2, 5, 8\), key \(3, 5, 8\)",
    ),
    "key width": (
        lambda: nn.CrossAttention(E, H, kdim=3)(torch.ones(L, E), torch.ones(L, E)),
        nn.ShapeError,
        "key must be",
    ),
    "mask": (
        lambda: nn.SelfAttention(E, H)(torch.ones(N, L, E), attn_mask=torch.ones(N, L, L)[:, :, :4]),
        nn.ShapeError,
        r"attn_mask must broadcast to \(2, 2, 5, 5\).*\(2, 5, 4\)",
    ),
    "padding": (
        lambda: nn.SelfAttention(E, H)(torch.ones(N, L, E), key_padding_mask=torch.ones(L, N, dtype=torch.bool)),
        nn.ShapeError,
        r"key_padding_mask must broadcast to \(2, 5\)",
    ),
    "integer mask": (
        lambda: nn.SelfAttention(E, H)(torch.ones(L, E), attn_mask=torch.ones(L, L, dtype=torch.int64)),
        nn.ArgumentError,
        "must be bool",
    ),
    "heads": (lambda: nn.SelfAttention(8, 3), AssertionError, "divisible"),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


class Rows(nn.Module):
    """Digits read as sequences of eight rows of eight pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.places = nn.Parameter(torch.randn(8, 32) * 0.1)
        self.attention = nn.Residual(nn.SelfAttention(32, 4))
        self.head = nn.Linear(8 * 32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.attention(self.embed(images.squeeze(1)) + self.places)
        return self.head(x.relu().flatten(1))


def test_self_attention_trains_on_digits_to_95_percent() -> None:
    images, labels, test_images, test_labels = digits()
    model = Rows()
    fit(model, images, labels, epochs=14, lr=1e-2)
    assert accuracy(model, test_images, test_labels) >= 0.95


class Lookup(nn.Module):
    """Which of the values stands under the key that is asked for?"""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Embedding(8, 16)
        self.values = nn.Embedding(5, 16)
        self.attention = nn.CrossAttention(16, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, asked: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        found = self.attention(self.keys(asked).unsqueeze(1), self.keys(keys), self.values(values))
        return self.head(found.squeeze(1))


def lookups(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    keys = torch.rand(count, 8).argsort(1)[:, :4]
    values, place = torch.randint(5, (count, 4)), torch.randint(4, (count,))
    rows = torch.arange(count)
    return keys[rows, place], keys, values, values[rows, place]


def test_cross_attention_learns_to_look_up_to_98_percent() -> None:
    *inputs, answers = lookups(1500)
    model = Lookup()
    fit(model, inputs, answers, epochs=14, lr=1e-2)
    *inputs, answers = lookups(500)
    assert accuracy(model, inputs, answers) >= 0.98
