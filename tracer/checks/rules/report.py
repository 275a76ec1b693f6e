"""What ``check_rule`` was told, and what it looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class CheckOptions:
    """What ``check_rule`` was told."""

    dtypes: tuple[torch.dtype, ...]
    torch_agrees: bool = True
    differences: bool = True
    memory: bool = True
    #: What the rule is to be the gradient of, where that is not the op.
    against: Callable[..., Any] | None = None


@dataclass
class RuleReport:
    """What ``check_rule`` looked at, all of it right."""

    op: str
    #: Calls checked, by where their arguments come from: ``given``, ``derived`` from the signature, torch's ``database``.
    examples: Counter[str] = field(default_factory=Counter)
    #: Calls checked in each dtype, in each spelling, and to each order.
    dtypes: Counter[str] = field(default_factory=Counter)
    spellings: Counter[str] = field(default_factory=Counter)
    orders: Counter[int] = field(default_factory=Counter)
    #: Comparisons with torch's autograd, and with central differences.
    against_torch: int = 0
    against_differences: int = 0
    #: Calls at corners, where differences measure nothing; calls that torch refuses; calls that the rule itself refuses, by error.
    corners: int = 0
    refused: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    #: Comparisons in which torch differs and central differences are on our side.
    torch_wrong: int = 0
    #: Comparisons in which torch is on the rule's side and differences are not: a gauge (the sign of a singular vector), arguments
    #: that depend on each other (a kernel's input and its mean), or a fault that torch has too.
    doubtful: int = 0
    #: Bytes kept for backward over all calls, by the rule and by torch.
    kept_bytes: int = 0
    torch_bytes: int = 0
    seconds: float = 0.0
    #: The last error of ``against``, in a call that the op takes.
    definition_error: Exception | None = None

    def __str__(self) -> str:
        sources = ", ".join(f"{n} {source}" for source, n in self.examples.items())
        memory = f"{self.kept_bytes:,} bytes kept" + (f" (torch {self.torch_bytes:,})" if self.torch_bytes else "")
        lines = [
            f"{self.op}: right in {self.examples.total()} examples ({sources or 'none'}), {self.seconds:.1f} s",
            f"  spellings: {', '.join(self.spellings)}",
            f"  dtypes: {', '.join(f'{d} {n}' for d, n in self.dtypes.items())}; "
            f"orders: {', '.join(f'{o}: {n}' for o, n in self.orders.items())}",
            f"  compared {self.against_torch} times with torch, {self.against_differences} times with differences "
            f"({self.corners} corners left out); {memory}",
        ]
        if self.torch_wrong:
            lines.append(f"  torch differs, and differences are on the rule's side: {self.torch_wrong} times")
        if self.doubtful:
            lines.append(f"  differences disagree, and torch is on the rule's side: {self.doubtful} times")
        if self.unsupported:
            lines.append(
                "  calls that the rule refuses: " + "; ".join(f"{n} x {e}" for e, n in self.unsupported.items())
            )
        return "\n".join(lines)

    __repr__ = __str__
