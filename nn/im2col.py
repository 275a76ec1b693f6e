"""Images as matrices of windows and back, so that a convolution is a matrix product: 1, 2 and 3 spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from nn.errors import ArgumentError, ShapeError
from nn.module import Module

Sizes = int | Sequence[int]


@dataclass(frozen=True)
class _Windows:
    """Where the windows of one call lie: a number for each spatial dimension."""

    kernel: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def span(self) -> tuple[int, ...]:
        """How far a window reaches."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def counts(self, image: Sequence[int]) -> tuple[int, ...]:
        """How many windows an image of this size has. Raises ``ShapeError`` if a window does not fit into it."""
        padded = [n + 2 * p for n, p in zip(image, self.padding, strict=True)]
        if any(s > n for s, n in zip(self.span, padded, strict=True)):
            raise ShapeError(
                f"no window fits: the image is {tuple(image)}, with its padding {tuple(padded)}, and a window of "
                f"kernel {self.kernel} and dilation {self.dilation} reaches over {self.span}"
            )
        return tuple((n - s) // step + 1 for n, s, step in zip(padded, self.span, self.stride, strict=True))


def img_to_col(
    input: torch.Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> torch.Tensor:
    """The windows of images as the columns of matrices.

    Takes ``(*, C, *spatial)`` and gives ``(*, C * prod(kernel_size), windows)``. It is ``F.unfold`` in its layout and
    its arguments, for 1, 2 or 3 spatial dimensions, any dtype and any number of leading dimensions. The first sequence
    among the arguments says how many dimensions are spatial; if all are integers the input is taken as
    ``(N, C, *spatial)``. With ``weight.flatten(1) @ img_to_col(x, weight.shape[2:])`` a convolution is written as a
    matrix product.

    Raises ``ShapeError`` where the input has too few dimensions or no window fits into it, ``ArgumentError`` for
    sequences of different lengths and for numbers that are too small.
    """
    rank = _rank(kernel_size, dilation, padding, stride)
    if rank is None:
        rank = input.dim() - 2
        if rank not in (1, 2, 3):
            raise ShapeError(
                f"img_to_col() with integers takes (N, C, *spatial) with 1 to 3 spatial dimensions, and the input has "
                f"shape {tuple(input.shape)}. Give kernel_size as a tuple for other batch dimensions."
            )
    elif input.dim() <= rank:
        raise ShapeError(f"img_to_col() of a kernel {kernel_size} takes (*, C, {'*' * rank}): got {tuple(input.shape)}")
    windows = _windows(rank, kernel_size, dilation, padding, stride)
    counts = windows.counts(input.shape[-rank:])
    *batch, channels = input.shape[:-rank]
    view = F.pad(input, [p for p in reversed(windows.padding) for _ in range(2)]) if any(windows.padding) else input
    for axis, (span, step, dilation_) in enumerate(
        zip(windows.span, windows.stride, windows.dilation, strict=True), view.dim() - rank
    ):
        view = view.unfold(axis, span, step)[..., ::dilation_]
    # (*, C, counts, kernel) -> (*, C, kernel, counts); up to here nothing is copied but the padding.
    first = view.dim() - 2 * rank
    view = view.movedim(tuple(range(first + rank, first + 2 * rank)), tuple(range(first, first + rank)))
    return view.reshape(*batch, channels * math.prod(windows.kernel), math.prod(counts))


def col_to_img(
    input: torch.Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> torch.Tensor:
    """Images from the windows in columns, those that overlap added up.

    Takes ``(*, C * prod(kernel_size), windows)`` and gives ``(*, C, *output_size)``. It is the adjoint of
    ``img_to_col``; ``F.fold`` for 1, 2 or 3 spatial dimensions and any number of leading dimensions. The first sequence
    among the arguments says how many dimensions are spatial; if all are integers there are two, as for ``F.fold``.

    Raises ``ShapeError`` where the columns are not those of such images, ``ArgumentError`` for sequences of different
    lengths and for numbers that are too small.
    """
    rank = _rank(output_size, kernel_size, dilation, padding, stride) or 2
    image = _numbers("output_size", output_size, rank, least=1)
    windows = _windows(rank, kernel_size, dilation, padding, stride)
    counts = windows.counts(image)
    volume = math.prod(windows.kernel)
    if input.dim() < 2 or input.shape[-2] % volume or input.shape[-1] != math.prod(counts):
        raise ShapeError(
            f"col_to_img() of images {image} with windows of kernel {windows.kernel} takes "
            f"(*, C * {volume}, {math.prod(counts)}): got {tuple(input.shape)}"
        )
    *batch, rows, _ = input.shape
    channels, count = rows // volume, math.prod(batch)
    if rank < 3:
        flat = input.reshape(count, rows, input.shape[-1])
        images = _fold(flat, image, windows.kernel, windows.dilation, windows.padding, windows.stride)
        return images.reshape(*batch, channels, *image)
    # The planes first, one for each depth and offset in depth; then the depths, whose planes are lines to them.
    depth, area = windows.kernel[0], math.prod(windows.kernel[1:])
    planes = input.reshape(count * channels * depth, area, counts[0], math.prod(counts[1:])).transpose(1, 2)
    planes = planes.reshape(count * channels * depth * counts[0], area, math.prod(counts[1:]))
    planes = _fold(planes, image[1:], windows.kernel[1:], windows.dilation[1:], windows.padding[1:], windows.stride[1:])
    pixels = math.prod(image[1:])
    lines = planes.reshape(count, channels * depth, counts[0] * pixels)
    volumes = _fold(
        lines,
        (image[0], pixels),
        (depth, 1),
        (windows.dilation[0], 1),
        (windows.padding[0], 0),
        (windows.stride[0], 1),
    )
    return volumes.reshape(*batch, channels, *image)


def _fold(
    columns: torch.Tensor,
    image: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """``F.fold``, lines as images of height one."""
    one = (1,) * (2 - len(image))
    none = (0,) * (2 - len(image))
    return F.fold(columns, (*one, *image), (*one, *kernel), (*one, *dilation), (*none, *padding), (*one, *stride))


def _rank(*arguments: Sizes) -> int | None:
    """The number of spatial dimensions that the arguments tell; None if all are integers."""
    return next((len(argument) for argument in arguments if not isinstance(argument, int)), None)


def _windows(rank: int, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> _Windows:
    return _Windows(
        _numbers("kernel_size", kernel_size, rank, least=1),
        _numbers("dilation", dilation, rank, least=1),
        _numbers("padding", padding, rank, least=0),
        _numbers("stride", stride, rank, least=1),
    )


def _numbers(name: str, argument: Sizes, rank: int, least: int) -> tuple[int, ...]:
    numbers = (argument,) * rank if isinstance(argument, int) else tuple(argument)
    if rank not in (1, 2, 3) or len(numbers) != rank:
        raise ArgumentError(
            f"{name} must be one number, or one for each of 1, 2 or 3 spatial dimensions: got {argument}"
        )
    if any(n < least for n in numbers):
        raise ArgumentError(f"{name} must be at least {least}: got {argument}")
    return numbers


class Im2Col(Module):
    """``img_to_col`` as a module: ``torch.nn.Unfold`` for 1, 2 or 3 spatial dimensions."""

    def __init__(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``(*, C, *spatial)`` to ``(*, C * prod(kernel_size), windows)``."""
        return img_to_col(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Col2Im(Module):
    """``col_to_img`` as a module: ``torch.nn.Fold`` for 1, 2 or 3 spatial dimensions."""

    def __init__(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``(*, C * prod(kernel_size), windows)`` to ``(*, C, *output_size)``."""
        return col_to_img(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )
