"""Ops that no rule covers, whatever torch or glassgrad add: of a library of the tests' own; and a rule that is no op's own."""

from __future__ import annotations

import torch

_library = torch.library.Library("glassgrad_tests", "DEF")
_library.define("mystery(Tensor x, float scale=2.0) -> Tensor")
_library.define("mystery_pair(Tensor x) -> (Tensor, Tensor)")
_library.impl("mystery", lambda x, scale=2.0: x * scale, "CompositeImplicitAutograd")
_library.impl("mystery_pair", lambda x: (x * 2, x * x), "CompositeImplicitAutograd")

mystery = torch.ops.glassgrad_tests.mystery
mystery_pair = torch.ops.glassgrad_tests.mystery_pair


def ten_times(grad: torch.Tensor) -> torch.Tensor:
    """A rule that any op can be given, and that is right for none."""
    return grad * 10
