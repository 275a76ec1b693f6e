"""One call of each op at a size that people train with; named as in ``tracer/checks/conformance/op_tiers.json``."""

from __future__ import annotations

from op_calls import Call
from realistic_layers import layer_calls
from realistic_math import math_calls
from realistic_moves import move_calls


def calls() -> list[Call]:
    """All of them."""
    return [*math_calls(), *move_calls(), *layer_calls()]
