"""What the arguments of a torch function are called, in which order, with which defaults."""

from __future__ import annotations

import torch

from ops_registry.signatures import signature_of


def test_a_signature_has_the_keyword_only_arguments_too() -> None:
    assert signature_of(torch.add).names == ("input", "other", "alpha")
    assert signature_of(torch.add).defaults["alpha"] == 1


def test_results_have_names() -> None:
    assert signature_of(torch.ops.aten.max.dim).outputs == ("values", "indices")
