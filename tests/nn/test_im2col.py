"""Images as columns and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.checking import plain
from support.training import accuracy, data, digits, fit

import nn
import tracer

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES = {1: (11,), 2: (8, 9), 3: (6, 7, 5)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "dilation": {"dilation": 2},
    "all": {"stride": 2, "padding": 2, "dilation": 2},
}


def by_matmul(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int = 1, **options: Any
) -> torch.Tensor:
    """A convolution, written as a matrix product for each group."""
    kernel = weight.shape[2:]
    counts = [
        (n + 2 * options.get("padding", 0) - options.get("dilation", 1) * (k - 1) - 1) // options.get("stride", 1) + 1
        for n, k in zip(x.shape[2:], kernel, strict=True)
    ]
    columns = nn.img_to_col(x, kernel, **options)
    columns = columns.reshape(len(x), groups, -1, columns.shape[-1])
    out = weight.reshape(groups, len(weight) // groups, -1) @ columns
    return out.reshape(len(x), len(weight), *counts) + bias.view(-1, *(1 for _ in kernel))


def both_worlds(
    function: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor], *values: torch.Tensor
) -> None:
    """Values, gradients and second derivatives of ours on tracked tensors and of torch's on its own are equal."""
    results = []
    for call, make in (
        (function, lambda v: tracer.tensor(v, requires_grad=True)),
        (reference, lambda v: v.clone().requires_grad_()),
    ):
        leaves = [make(v) for v in values]
        output = call(*leaves)
        weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
        first = torch.autograd.grad((output**2 * weights).sum(), leaves, create_graph=True)
        sum((g**2).sum() for g in first).backward()
        results.append([plain(t) for t in (output, *first, *(leaf.grad for leaf in leaves))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_by_matmul_is_torchs(rank: int, options: dict[str, Any], groups: int) -> None:
    kernel = (2, 3, 2)[:rank]
    both_worlds(
        lambda x, w, b: by_matmul(x, w, b, groups, **options),
        lambda x, w, b: CONV[rank](x, w, b, groups=groups, **options),
        data(2, 4, *SIZES[rank]),
        data(6, 4 // groups, *kernel),
        data(6),
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_transposed_convolution_by_matmul_is_torchs(rank: int, options: dict[str, Any]) -> None:
    kernel = (2, 3, 2)[:rank]
    x, weight = data(2, 3, *(3, 4, 2)[:rank]), data(3, 2, *kernel)
    size = TRANSPOSED[rank](x, weight, **options).shape[2:]
    both_worlds(
        lambda x, w: nn.col_to_img(w.flatten(1).t() @ x.flatten(2), size, kernel, **options),
        lambda x, w: TRANSPOSED[rank](x, w, **options),
        x,
        weight,
    )


UNFOLD: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": (2, 3), "stride": (1, 2)},
    {"kernel_size": 3, "dilation": 2, "padding": (2, 1), "stride": 2},
]


@pytest.mark.parametrize("options", UNFOLD)
def test_in_two_dimensions_it_is_unfold_and_fold(options: dict[str, Any]) -> None:
    x = data(2, 3, 8, 9)
    both_worlds(lambda x: nn.img_to_col(x, **options), lambda x: F.unfold(x, **options), x)
    columns = F.unfold(x, **options)
    both_worlds(lambda c: nn.col_to_img(c, (8, 9), **options), lambda c: F.fold(c, (8, 9), **options), columns)
    assert torch.equal(nn.Im2Col(**options)(x), torch.nn.Unfold(**options)(x))
    assert torch.equal(nn.Col2Im((8, 9), **options)(columns), torch.nn.Fold((8, 9), **options)(columns))
    assert torch.equal(nn.col_to_img(columns[0], (8, 9), **options), F.fold(columns[0], (8, 9), **options))


def test_one_dimension_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    columns = nn.img_to_col(x, (2,))
    assert columns.tolist() == [[1, 2, 3], [2, 3, 4]]
    assert nn.col_to_img(columns, (4,), 2).tolist() == [[1, 4, 6, 4]]


@given(st.data())
def test_one_is_the_adjoint_of_the_other(draw: Any) -> None:
    rank = draw.draw(st.integers(1, 3))
    pick = lambda low, high: tuple(draw.draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    kernel, dilation, padding, stride = pick(1, 3), pick(1, 2), pick(0, 2), pick(1, 3)
    image = tuple(d * (k - 1) + 1 + extra for d, k, extra in zip(dilation, kernel, pick(0, 3), strict=True))
    batch = tuple(draw.draw(st.lists(st.integers(0, 2), max_size=2)))
    x = data(*batch, 2, *image)
    columns = nn.img_to_col(x, kernel, dilation, padding, stride)
    weights = torch.randn_like(columns)
    back = nn.col_to_img(weights, image, kernel, dilation, padding, stride)
    assert back.shape == x.shape
    torch.testing.assert_close((columns * weights).sum(), (x * back).sum())


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_any_batch_dimensions(batch: tuple[int, ...], rank: int) -> None:
    kernel, image = (2,) * rank, SIZES[rank]
    x = data(*batch, 3, *image)
    columns = nn.img_to_col(x, kernel)
    assert columns.shape[:-1] == (*batch, 3 * 2**rank)
    assert nn.col_to_img(columns, image, kernel).shape == x.shape
    if x.numel():
        flat = nn.img_to_col(x.view(-1, 3, *image), kernel)
        assert torch.equal(columns.reshape(flat.shape), flat)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_with_integers_the_input_has_one_batch_dimension(rank: int) -> None:
    x = data(2, 3, *SIZES[rank])
    assert torch.equal(nn.img_to_col(x, 2, padding=1), nn.img_to_col(x, (2,) * rank, padding=1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex128])
def test_windows_of_any_dtype(dtype: torch.dtype) -> None:
    x = torch.arange(12).view(1, 3, 4).to(dtype)
    assert nn.img_to_col(x, (2, 2)).dtype == dtype
    assert nn.img_to_col(x, (2, 2))[:, 0].tolist() == x[0, :2, :2].flatten().tolist()


def test_strided_input() -> None:
    x = data(9, 8, 3, 2).permute(3, 2, 1, 0)
    assert torch.equal(nn.img_to_col(x, (3, 2), padding=1), F.unfold(x, (3, 2), padding=1))


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "window too large": (
        lambda: nn.img_to_col(torch.ones(1, 1, 3, 3), (2, 5)),
        nn.ShapeError,
        r"no window fits.*\(3, 3\)",
    ),
    "rank": (lambda: nn.img_to_col(torch.ones(3, 3), (2, 2)), nn.ShapeError, r"got \(3, 3\)"),
    "integers": (lambda: nn.img_to_col(torch.ones(3, 3), 2), nn.ShapeError, r"\(3, 3\).*tuple"),
    "lengths": (lambda: nn.img_to_col(torch.ones(1, 1, 3, 3), (2, 2), stride=(1,)), nn.ArgumentError, "stride"),
    "four dimensions": (lambda: nn.img_to_col(torch.ones(1, 1, 3, 3, 3, 3), (1,) * 4), nn.ArgumentError, "kernel_size"),
    "stride": (lambda: nn.img_to_col(torch.ones(1, 1, 3), 2, stride=0), nn.ArgumentError, "stride must be at least 1"),
    "padding": (lambda: nn.img_to_col(torch.ones(1, 1, 3), 2, padding=-1), nn.ArgumentError, "padding"),
    "columns": (
        lambda: nn.col_to_img(torch.ones(1, 5, 4), (3, 3), 2),
        nn.ShapeError,
        r"\(\*, C \* 4, 4\): got \(1, 5, 4\)",
    ),
    "windows": (lambda: nn.col_to_img(torch.ones(1, 4, 5), (3, 3), 2), nn.ShapeError, r"got \(1, 4, 5\)"),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_functions_are_functional_too() -> None:
    assert nn.functional.img_to_col is nn.img_to_col and nn.functional.col_to_img is nn.col_to_img


def test_printed_they_show_their_arguments() -> None:
    assert repr(nn.Im2Col(3, padding=1)) == "Im2Col(kernel_size=3, dilation=1, padding=1, stride=1)"
    assert repr(nn.Col2Im((8,), 3)).startswith("Col2Im(output_size=(8,), kernel_size=3")


class ByMatmul(nn.Module):
    """A convolution layer of windows and a linear layer."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.windows = nn.Im2Col(3, padding=1, stride=2)
        self.linear = nn.Linear(channels * 9, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(self.windows(x).transpose(1, 2)).transpose(1, 2)
        return out.unflatten(2, (x.shape[2] // 2, x.shape[3] // 2))


def test_windows_train_on_digits_to_95_percent() -> None:
    images, labels, test_images, test_labels = digits()
    model = nn.Sequential(ByMatmul(1, 16), nn.ReLU(), ByMatmul(16, 32), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    fit(model, images, labels, epochs=10)
    assert accuracy(model, test_images, test_labels) >= 0.95


def test_windows_put_back_together_denoise_digits_to_70_percent_of_the_variance() -> None:
    images, _, test_images, _ = digits()
    noisy = lambda x: x + torch.randn_like(x) * 0.2  # noqa: E731
    model = nn.Sequential(
        nn.Im2Col(4, stride=2),
        nn.Unflatten(1, (16, 1)),
        nn.Flatten(1),
        nn.Linear(16 * 9, 96),
        nn.ReLU(),
        nn.Linear(96, 16 * 9),
        nn.Unflatten(1, (16, 9)),
        nn.Col2Im((8, 8), 4, stride=2),
    )
    fit(model, noisy(images), images, epochs=15, loss=F.mse_loss)
    with torch.no_grad():
        rest = F.mse_loss(model(noisy(test_images)), test_images) / (test_images - images.mean(0)).square().mean()
    assert 1 - rest >= 0.7
