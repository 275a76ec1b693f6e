"""Which rule belongs to which torch function, and the formulas themselves. Knows nothing of tracked tensors or graphs."""

from typing import TYPE_CHECKING, Any

from ops_registry.errors import (
    DuplicateRuleError,
    GlassgradError,
    RuleCheckError,
    RuleError,
    RuleResultError,
    UnsupportedCallError,
)
from ops_registry.registry import RuleInfo, backward, decomposition, lookup, no_gradient, overloaded, use

import ops_registry.rules  # noqa: F401  isort: skip  (registers every rule)
from ops_registry.registry import rules  # isort: skip  (the function takes the name that the package had)

if TYPE_CHECKING:
    from ops_registry.rule_check import check_rule

__all__ = [
    "DuplicateRuleError",
    "GlassgradError",
    "RuleCheckError",
    "RuleError",
    "RuleInfo",
    "RuleResultError",
    "UnsupportedCallError",
    "backward",
    "check_rule",
    "decomposition",
    "lookup",
    "no_gradient",
    "overloaded",
    "rules",
    "use",
]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: nobody who only computes gradients needs it.
    if name == "check_rule":
        from ops_registry.rule_check import check_rule

        return check_rule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
