"""Modules on tracked parameters, built on ``torch.nn``; knows nothing of how a gradient is computed.

Every module of ``torch.nn`` is here under its name, with tracked parameters, and blocks that torch does not have. Any
other name (``nn.utils``, ``nn.Buffer``) is torch's.
"""

from typing import TYPE_CHECKING, Any

import torch

from nn import functional, init, parallel
from nn.activations import Swish
from nn.attention import CrossAttention, SelfAttention
from nn.conv_lstm import ConvLSTM2d
from nn.densenet import DenseBlock, Transition
from nn.errors import ArgumentError, ExchangeError, ShapeError
from nn.gradients import zero_grad
from nn.im2col import Col2Im, Im2Col, col_to_img, img_to_col
from nn.layers import __all__ as _layers
from nn.parameter import Parameter
from nn.residual import Residual
from nn.tracking import track
from nn.transformer import TransformerBlock
from tracer.recording.tracked_parameters import UninitializedParameter

if TYPE_CHECKING:
    # Type checkers see torch's classes, of which ours are subclasses; so nn.Linear is an nn.Module to them.
    from torch.nn.modules import *  # noqa: F403
else:
    from nn.layers import *  # noqa: F403
    from nn.module import Module

__all__ = [
    "ArgumentError",
    "Col2Im",
    "ConvLSTM2d",
    "CrossAttention",
    "DenseBlock",
    "ExchangeError",
    "Im2Col",
    "Module",
    "Parameter",
    "Residual",
    "SelfAttention",
    "ShapeError",
    "Swish",
    "TransformerBlock",
    "Transition",
    "UninitializedParameter",
    "col_to_img",
    "functional",
    "img_to_col",
    "init",
    "parallel",
    "track",
    "zero_grad",
]
__all__ += _layers


def __getattr__(name: str) -> Any:
    try:
        return getattr(torch.nn, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn)})
