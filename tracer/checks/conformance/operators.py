"""The operators of torch's own database: which can be differentiated, their tiers, and every way to write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tracer.checks.op_database import OP_DB, listed_ops

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "complex128": torch.complex128,
}


def full_name(op: Any) -> str:
    """``linalg.norm.subgradients_at_zero``: the operator and its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


@cache
def load_ops(source: str = OP_DB) -> dict[str, Any]:
    """The operators of a list that torch can differentiate, by full name."""
    return {full_name(op): op for op in listed_ops(source) if op.supports_autograd}


@cache
def tiers() -> dict[str, str]:
    """The tier of each operator: A is what most networks need, D what hardly anyone calls."""
    sorting = json.loads((Path(__file__).parent / "op_tiers.json").read_text())
    return {name: tier for tier, names in sorting.items() for name in names}


def tier_of(name: str) -> str:
    """The tier of an operator; ``-`` for one that a newer torch added."""
    return tiers().get(name, "-")


def applies(op: Any, dtype: str, order: int, device: str) -> bool:
    """Whether torch differentiates the operator in this dtype, to this order."""
    known = op.supported_backward_dtypes(torch.device(device).type)
    return DTYPES[dtype] in known and (order == 1 or op.supports_gradgrad)


def operators(pattern: str = "") -> dict[str, Any]:
    """torch's operators that have a derivative in float64 on the CPU and in whose name ``pattern`` finds a match, by name."""
    return {n: op for n, op in load_ops().items() if applies(op, "float64", 1, "cpu") and re.search(pattern, n)}


@dataclass(frozen=True)
class Way:
    """One way to write the operator."""

    name: str
    function: Callable[..., Any]
    in_place: bool = False

    def __call__(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not self.in_place:
            return self.function(*arguments, **keywords)
        written = arguments[0].clone()
        result = self.function(written, *arguments[1:], **keywords)
        assert result is written, "an in-place call has to give back the tensor that it wrote into"
        return result


def ways(op: Any) -> list[Way]:
    """Every way to write the operator that the database knows, each once."""
    listed = [
        ("function", op.get_op(), False),
        ("method", op.get_method(), False),
        ("in-place", op.get_inplace(), True),
        ("operator", op.get_operator(), False),
        ("in-place operator", op.get_inplace_operator(), True),
    ]
    for alias in op.aliases:
        listed += [
            (f"alias {alias.name}", alias.op, False),
            (f"alias {alias.name}, method", alias.method_variant, False),
            (f"alias {alias.name}, in-place", alias.inplace_variant, True),
        ]
    found: list[Way] = []
    for name, function, in_place in listed:
        if function is not None and all(function is not way.function for way in found):
            found.append(Way(name, function, in_place))
    return found
