"""Ops that no rule covers, whatever torch or glassgrad add: of a library of the tests' own; and a rule that is no op's own."""

from __future__ import annotations

import torch

_library = torch.library.Library("glassgrad_tests", "DEF")
_library.define("mystery(Tensor x, float scale=2.0) -> Tensor")
_library.define("mystery_pair(Tensor x) -> (Tensor, Tensor)")
_library.impl("mystery", lambda x, scale=2.0: x * scale, "CompositeExplicitAutograd")
_library.impl("mystery_pair", lambda x: (x * 2, x * x), "CompositeExplicitAutograd")

#: Nobody can differentiate these, torch neither.
mystery = torch.ops.glassgrad_tests.mystery
mystery_pair = torch.ops.glassgrad_tests.mystery_pair

_fragment = torch.library.Library("aten", "FRAGMENT")
_fragment.define("glassgrad_mystery(Tensor x, float scale=2.0) -> Tensor")
_fragment.define("glassgrad_mystery_pair(Tensor x) -> (Tensor, Tensor)")
_fragment.impl("glassgrad_mystery", lambda x, scale=2.0: x * scale, "CompositeImplicitAutograd")
_fragment.impl("glassgrad_mystery_pair", lambda x: (x * 2, x * x), "CompositeImplicitAutograd")

#: The same as ops that torch has and can differentiate, and for which there is no rule.
of_torch = torch.ops.aten.glassgrad_mystery
pair_of_torch = torch.ops.aten.glassgrad_mystery_pair


def ten_times(grad: torch.Tensor) -> torch.Tensor:
    """A rule that any op can be given, and that is right for none."""
    return grad * 10
