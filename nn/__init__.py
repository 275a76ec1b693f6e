"""Modules on tracked parameters. Built on ``torch.nn``; knows nothing of how a gradient is computed."""

from nn.parameter import Parameter
from nn.tracking import track

__all__ = ["Parameter", "track"]
