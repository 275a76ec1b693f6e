"""Which rule belongs to which torch function, and the formulas themselves. Knows nothing of tracked tensors or graphs."""

import ops_registry.rules  # noqa: F401  (registers every rule)
from ops_registry import packs
from ops_registry.declare import no_gradient, passes_through, self_adjoint, zero_gradient
from ops_registry.errors import (
    DuplicateRuleError,
    GlassgradError,
    RuleCheckError,
    RuleError,
    RuleResultError,
    SiteError,
    UnmatchedScopeError,
    UnsupportedCallError,
    UnusedRuleError,
)
from ops_registry.registry import RuleInfo, backward, decomposition, list_rules, lookup, overloaded
from ops_registry.scopes import use
from ops_registry.sites import Site

__all__ = [
    "DuplicateRuleError",
    "GlassgradError",
    "RuleCheckError",
    "RuleError",
    "RuleInfo",
    "RuleResultError",
    "Site",
    "SiteError",
    "UnmatchedScopeError",
    "UnsupportedCallError",
    "UnusedRuleError",
    "backward",
    "decomposition",
    "list_rules",
    "lookup",
    "no_gradient",
    "overloaded",
    "packs",
    "passes_through",
    "self_adjoint",
    "use",
    "zero_gradient",
]
