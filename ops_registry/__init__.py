"""Which rule belongs to which torch function, and the formulas themselves. Knows nothing of tracked tensors or graphs."""

from ops_registry.errors import (
    DuplicateRuleError,
    GlassgradError,
    RuleError,
    RuleResultError,
    UnsupportedCallError,
)
from ops_registry.registry import RuleInfo, backward, decomposition, lookup, no_gradient, overloaded, use

import ops_registry.rules  # noqa: F401  isort: skip  (registers every rule)
from ops_registry.registry import rules  # isort: skip  (the function takes the name that the package had)

__all__ = [
    "DuplicateRuleError",
    "GlassgradError",
    "RuleError",
    "RuleInfo",
    "RuleResultError",
    "UnsupportedCallError",
    "backward",
    "decomposition",
    "lookup",
    "no_gradient",
    "overloaded",
    "rules",
    "use",
]
