"""Calls of the parts of networks: activations, convolution, pooling, normalisation, attention, recurrence, losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from op_calls import (
    FEW_IMAGES,
    IMAGES,
    POINTS,
    ROWS,
    TOKENS,
    Call,
    Make,
    fixed,
    integers,
    make_calls,
    normal,
    uniform,
)

nn = "nn.functional."

ACTIVATIONS = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus "
    "softshrink softsign tanhshrink"
)


def activations() -> Iterator[Call]:
    for op in ACTIVATIONS.split():
        yield Call(nn + op, getattr(F, op), (normal(*POINTS),))
    tokens, x = normal(*TOKENS), normal(*ROWS)
    yield from make_calls(
        {
            nn + "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), normal(*POINTS)),
            nn + "glu": (F.glu, tokens),
            nn + "prelu": (F.prelu, normal(*FEW_IMAGES), uniform(64)),
            nn + "rrelu": (lambda x: F.rrelu(x, training=True), normal(*POINTS)),
            nn + "softmin": (lambda x: F.softmin(x, -1), x),
            nn + "softmin.with_dtype": (lambda x: F.softmin(x, -1, dtype=torch.float64), x),
            nn + "threshold": (lambda x: F.threshold(x, 0.1, 0.0), normal(*POINTS)),
            "log_softmax": (lambda x: torch.log_softmax(x, -1), tokens),
            "log_softmax.with_dtype": (lambda x: torch.log_softmax(x, -1, dtype=torch.float64), x),
            "softmax": (lambda x: torch.softmax(x, -1), tokens),
            "softmax.with_dtype": (lambda x: torch.softmax(x, -1, dtype=torch.float64), x),
            nn + "alpha_dropout": (F.alpha_dropout, normal(*POINTS)),
            nn + "dropout": (F.dropout, normal(*POINTS)),
            nn + "dropout2d": (F.dropout2d, normal(*FEW_IMAGES)),
            nn + "dropout3d": (F.dropout3d, normal(4, 32, 8, 28, 28)),
            nn + "feature_alpha_dropout.with_train": (
                lambda x: F.feature_alpha_dropout(x, training=True),
                normal(*FEW_IMAGES),
            ),
            nn + "feature_alpha_dropout.without_train": (
                lambda x: F.feature_alpha_dropout(x, training=False),
                normal(*FEW_IMAGES),
            ),
        }
    )


def pooling() -> Iterator[Call]:
    x, big, line, cube = normal(*FEW_IMAGES), normal(*IMAGES), normal(16, 64, 1024), normal(4, 32, 16, 28, 28)
    yield from make_calls(
        {
            nn + "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 128), line),
            nn + "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7), x),
            nn + "adaptive_avg_pool2d to one": (lambda x: F.adaptive_avg_pool2d(x, 1), big),
            nn + "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 4), cube),
            nn + "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 128), line),
            nn + "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 7), x),
            nn + "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 4), cube),
            nn + "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), line),
            nn + "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), big),
            nn + "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), cube),
            nn + "max_pool1d": (lambda x: F.max_pool1d(x, 2), line),
            nn + "max_pool2d": (lambda x: F.max_pool2d(x, 2), big),
            nn + "max_pool3d": (lambda x: F.max_pool3d(x, 2), cube),
        }
    )


def images() -> Iterator[Call]:
    x, line, small = normal(*FEW_IMAGES), normal(16, 64, 1024), normal(8, 64, 28, 28)
    yield from make_calls(
        {
            nn + "channel_shuffle": (lambda x: F.channel_shuffle(x, 4), x),
            nn + "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), line, normal(64, 64, 3), normal(64)),
            nn + "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), small, normal(64, 64, 3, 3), normal(64)),
            nn + "conv3d": (
                lambda x, w, b: F.conv3d(x, w, b, padding=1),
                normal(2, 16, 8, 28, 28),
                normal(16, 16, 3, 3, 3),
                normal(16),
            ),
            nn + "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), line, normal(64, 64, 4)),
            nn + "conv_transpose2d": (
                lambda x, w: F.conv_transpose2d(x, w, stride=2),
                normal(4, 64, 28, 28),
                normal(64, 32, 4, 4),
            ),
            nn + "conv_transpose3d": (
                lambda x, w: F.conv_transpose3d(x, w, stride=2),
                normal(2, 16, 4, 14, 14),
                normal(16, 16, 3, 3, 3),
            ),
            nn + "grid_sample": (
                lambda x, g: F.grid_sample(x, g, align_corners=False),
                normal(4, 16, 56, 56),
                uniform(4, 56, 56, 2, low=-1.0),
            ),
            nn + "interpolate.area": (lambda x: F.interpolate(x, scale_factor=0.5, mode="area"), x),
            nn + "interpolate.bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), small),
            nn + "interpolate.bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), small),
            nn + "interpolate.linear": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), line),
            nn + "interpolate.nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), small),
            nn + "interpolate.nearest-exact": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), small),
            nn + "interpolate.trilinear": (
                lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
                normal(2, 16, 8, 28, 28),
            ),
            nn + "local_response_norm": (lambda x: F.local_response_norm(x, 5), small),
            nn + "pad.circular": (lambda x: F.pad(x, (1, 1, 1, 1), "circular"), x),
            nn + "pad.constant": (lambda x: F.pad(x, (1, 1, 1, 1)), x),
            nn + "pad.reflect": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), x),
            nn + "pad.replicate": (lambda x: F.pad(x, (1, 1, 1, 1), "replicate"), x),
            nn + "pad.replicate_negative": (lambda x: F.pad(x, (-1, 1, -1, 1), "replicate"), x),
            nn + "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), x),
            nn + "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), x),
            nn + "unfold": (lambda x: F.unfold(x, 3, padding=1), normal(8, 16, 28, 28)),
            nn + "upsample_bilinear": (lambda x: F.upsample_bilinear(x, scale_factor=2), small),
            nn + "upsample_nearest": (lambda x: F.upsample_nearest(x, scale_factor=2), small),
        }
    )


def normalisations() -> Iterator[Call]:
    big, tokens, channels, width = normal(*IMAGES), normal(*TOKENS), normal(64), normal(768)
    images = normal(*FEW_IMAGES)

    def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, torch.zeros(64), torch.ones(64), w, b, training=True)

    def native_batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.native_batch_norm(x, w, b, torch.zeros(64), torch.ones(64), True, 0.1, 1e-5)[0]

    def native_group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.native_group_norm(x, w, b, *FEW_IMAGES[:2], 56 * 56, 8, 1e-5)[0]

    yield from make_calls(
        {
            nn + "batch_norm": (batch_norm, big, channels, channels),
            nn + "batch_norm of features": (
                lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
                normal(*ROWS),
                normal(1024),
                normal(1024),
            ),
            nn + "group_norm": (lambda x, w, b: F.group_norm(x, 8, w, b), images, channels, channels),
            nn + "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), images, channels, channels),
            nn + "layer_norm": (lambda x, w, b: F.layer_norm(x, (768,), w, b), tokens, width, width),
            nn + "layer_norm without weights": (lambda x: F.layer_norm(x, (768,)), tokens),
            nn + "normalize": (lambda x: F.normalize(x, dim=-1), tokens),
            nn + "rms_norm": (lambda x, w: F.rms_norm(x, (768,), w), tokens, width),
            "native_batch_norm": (native_batch_norm, images, channels, channels),
            "native_group_norm": (native_group_norm, images, channels, channels),
            "native_layer_norm": (
                lambda x, w, b: torch.native_layer_norm(x, (768,), w, b, 1e-5)[0],
                tokens,
                width,
                width,
            ),
        }
    )


def sequences() -> Iterator[Call]:
    qkv = normal(8, 8, 128, 64)
    modules = {
        "LSTM": torch.nn.LSTM(128, 128, batch_first=True),
        "GRU": torch.nn.GRU(128, 128, batch_first=True),
        "RNN": torch.nn.RNN(128, 128, batch_first=True),
        "LSTM, two layers, both ways": torch.nn.LSTM(64, 64, 2, bidirectional=True),
    }
    for name, module in modules.items():
        yield from recurrent(name, module)

    def attention(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, wo: torch.Tensor, bo: torch.Tensor) -> Any:
        return F.multi_head_attention_forward(
            x, x, x, 256, 8, w, b, None, None, False, 0.0, wo, bo, need_weights=False
        )[0]

    table, words = normal(10000, 256), integers(10000, 8, 512)
    bags = lambda: torch.arange(0, 4096, 16)  # noqa: E731
    yield from make_calls(
        {
            nn + "bilinear": (F.bilinear, normal(128, 64), normal(128, 64), normal(64, 64, 64), normal(64)),
            nn + "embedding": (lambda w, i: F.embedding(i, w), table, words),
            nn + "embedding_bag": (lambda w, i, o: F.embedding_bag(i, w, o), table, integers(10000, 4096), bags),
            nn + "embedding_bag of sums": (
                lambda w, i, o: F.embedding_bag(i, w, o, mode="sum"),
                table,
                integers(10000, 4096),
                bags,
            ),
            nn + "embedding_bag of maxima": (
                lambda w, i, o: F.embedding_bag(i, w, o, mode="max"),
                table,
                integers(10000, 4096),
                bags,
            ),
            nn + "linear": (F.linear, normal(8, 128, 768), normal(768, 768), normal(768)),
            nn + "multi_head_attention_forward": (
                attention,
                normal(128, 8, 256),
                normal(768, 256),
                normal(768),
                normal(256, 256),
                normal(256),
            ),
            nn + "scaled_dot_product_attention": (F.scaled_dot_product_attention, qkv, qkv, qkv),
            nn + "scaled_dot_product_attention, causal": (
                lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
                qkv,
                qkv,
                qkv,
            ),
        }
    )


def recurrent(name: str, module: torch.nn.Module) -> Iterator[Call]:
    """A module of torch as a function of its input and its parameters."""
    names = [n for n, _ in module.named_parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))[0]

    width = 64 if "two" in name else 128
    weights: list[Make] = [lambda p=p: p.detach().clone() for p in module.parameters()]
    yield Call(name, run, (normal(16, 64, width), *weights))


def losses() -> Iterator[Call]:
    x, p, sign = normal(*POINTS), uniform(*POINTS), fixed(lambda: torch.randint(2, (4096,)) * 2.0 - 1)
    target, yes_no = fixed(normal(*POINTS)), fixed(lambda: torch.randint(2, POINTS).float())
    rows, points, classes = normal(4096, 256), normal(4096), integers(1000, 1000)
    likelihood, labels = normal(64, 21, 56, 56), integers(21, 64, 56, 56)
    yield from make_calls(
        {
            nn + "binary_cross_entropy": (F.binary_cross_entropy, p, yes_no),
            nn + "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, x, yes_no),
            nn + "binary_cross_entropy_with_logits, weighted": (
                lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
                x,
                yes_no,
                fixed(uniform(1000)),
            ),
            nn + "cosine_embedding_loss": (F.cosine_embedding_loss, rows, rows, sign),
            nn + "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, -1), normal(*TOKENS), normal(*TOKENS)),
            nn + "cross_entropy": (F.cross_entropy, x, classes),
            nn + "cross_entropy of pixels": (F.cross_entropy, likelihood, labels),
            nn + "cross_entropy, smoothed": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), x, classes),
            nn + "cross_entropy with probabilities": (F.cross_entropy, x, fixed(lambda: torch.rand(POINTS).softmax(1))),
            nn + "ctc_loss": (
                lambda x, y, n, m: F.ctc_loss(x.log_softmax(2), y, n, m),
                normal(150, 32, 64),
                fixed(lambda: torch.randint(1, 64, (32, 30))),
                fixed(lambda: torch.full((32,), 150)),
                fixed(lambda: torch.randint(10, 30, (32,))),
            ),
            nn + "gaussian_nll_loss": (F.gaussian_nll_loss, x, target, p),
            nn + "hinge_embedding_loss": (F.hinge_embedding_loss, points, sign),
            nn + "huber_loss": (F.huber_loss, x, target),
            nn + "kl_div": (F.kl_div, x, fixed(p)),
            nn + "l1_loss": (F.l1_loss, x, target),
            nn + "margin_ranking_loss": (F.margin_ranking_loss, points, points, sign),
            nn + "mse_loss": (F.mse_loss, x, target),
            nn + "multi_margin_loss": (F.multi_margin_loss, x, classes),
            nn + "multilabel_margin_loss": (
                F.multilabel_margin_loss,
                normal(256, 100),
                lambda: torch.randint(100, (256, 100)) - 1,
            ),
            nn + "multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss, x, yes_no),
            nn + "nll_loss": (F.nll_loss, x, classes),
            nn + "nll_loss of pixels": (F.nll_loss, likelihood, labels),
            nn + "pairwise_distance": (F.pairwise_distance, rows, rows),
            nn + "poisson_nll_loss": (F.poisson_nll_loss, x, fixed(lambda: torch.randint(9, POINTS).float())),
            nn + "smooth_l1_loss": (F.smooth_l1_loss, x, target),
            nn + "soft_margin_loss": (F.soft_margin_loss, x, fixed(lambda: torch.randint(2, POINTS) * 2.0 - 1)),
            nn + "triplet_margin_loss": (F.triplet_margin_loss, rows, rows, rows),
            nn + "triplet_margin_with_distance_loss": (F.triplet_margin_with_distance_loss, rows, rows, rows),
            nn + "linear_cross_entropy": (
                F.linear_cross_entropy,
                normal(512, 256),
                normal(1000, 256),
                fixed(integers(1000, 512)),
            ),
        }
    )


def layer_calls() -> Iterator[Call]:
    for subject in (activations, pooling, images, normalisations, sequences, losses):
        yield from subject()
