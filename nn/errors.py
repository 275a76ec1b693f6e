"""Errors of the modules; each is also a ``RuntimeError``, as torch's own."""

from __future__ import annotations

from ops_registry.errors import GlassgradError


class ShapeError(GlassgradError):
    """Tensors whose shapes do not fit the module, or one another."""


class ArgumentError(GlassgradError, ValueError):
    """An argument that is none of those that the function takes, whatever the tensors."""


class ExchangeError(GlassgradError):
    """Processes that train together have parted: other models, a gradient that did not come, a process that is gone."""
