"""The errors of glassgrad, all under one base.

Each is a ``RuntimeError``, never a ``TypeError``: torch swallows a ``TypeError`` raised inside ``__torch_function__`` of a
binary operator and reports "unsupported operand" in its place.
"""

from __future__ import annotations


class GlassgradError(RuntimeError):
    """Base of every error that glassgrad raises itself."""


class RuleError(GlassgradError):
    """A rule cannot be registered as it is written (unknown parameter, unknown function, no such input)."""


class DuplicateRuleError(RuleError):
    """A second rule for the same input of the same op, without ``replace=True``."""


class UnusedRuleError(RuleError):
    """A ``use`` block has ended, and a rule that it put in force was never applied."""


class UnmatchedScopeError(UnusedRuleError):
    """Calls of the op were made, but none where ``where=`` says: no module or line matches it."""


class SiteError(RuleError):
    """A rule asks for ``site``, and no graph is open that knows where calls are made."""


class RuleResultError(GlassgradError):
    """What a rule returned is not a gradient of its input: wrong number, shape, dtype or device."""


class UnsupportedCallError(GlassgradError):
    """A rule exists, but not for this call of the op (an overload, a mode or a dtype for which it would be wrong)."""


class RuleCheckError(GlassgradError):
    """``check_rule`` found a rule wrong, or nothing to check it with."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        #: The kind of mistake in a word or two: ``"sign"``, ``"transposed"``, ``"missing term"``.
        self.kind = kind
