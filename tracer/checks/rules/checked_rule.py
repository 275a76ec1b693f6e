"""A rule under check: what torch and central differences say of one call of its op, and how a failure is noted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ops_registry.binding import Spelling
from ops_registry.errors import RuleResultError, UnsupportedCallError
from ops_registry.rule import Rule
from ops_registry.signatures import is_custom
from tracer.checks.derivatives import BackwardDiffersError, Call, Derivatives, Difference, differentiate
from tracer.checks.leaves import leaves_of, native_leaf, tracked_leaf
from tracer.checks.rules.diagnosis import WRITES, FailedCall, result_mistake
from tracer.checks.rules.report import CheckOptions, RuleReport
from tracer.checks.rules.sample_call import SampleCall, cast
from tracer.checks.slopes import Slope, first_by_differences, second_by_differences
from tracer.checks.tolerances import drawn_tolerance
from tracer.errors import InPlaceError, Mistake, UnsupportedError


class CheckedRule:
    """A rule, the spelling that it is called by first, and what came of it so far."""

    def __init__(self, rule: Rule, main: Spelling, options: CheckOptions, report: RuleReport) -> None:
        self.rule, self.main = rule, main
        self.options, self.report = options, report
        self.failures: list[FailedCall] = []

    def by_torch(self, call: SampleCall, wanted: Sequence[int], order: int) -> Derivatives | None:
        """What torch's own autograd gives, to the highest order that it knows; None where it refuses."""
        for attempt in range(order, 0, -1):
            try:
                leaves = leaves_of(call.leaves, wanted, native_leaf)
                found = differentiate(call.truth, leaves, wanted, attempt, native_leaf)
            except Exception as error:
                if call.definition is not None:
                    self.report.definition_error = error
                continue
            # An op of somebody's own library that torch does not differentiate gives results without a history, and no error.
            known = any(g is not None for g in found.first) or not is_custom(self.main.func)
            if (any(found.requires_grad) and known) or self.rule.no_gradient or not wanted:
                return found
            return None if self.rule.formulas else found
        return None

    def differences_approve(
        self, function: Call, call: SampleCall, wanted: Sequence[int], ours: Derivatives, found: Difference
    ) -> bool:
        """Whether torch is what is wrong: differences of ``function`` can tell, and they say what the rule says."""
        visible = found.error > 1e-4 and found.aspect in ("values differ", "no nan where torch has one")
        if not (visible and self.options.differences and found.what.endswith("derivative")):
            return False
        if call.dtype not in (torch.float64, torch.complex128):
            return _as_in_double(function, call, wanted, ours, found)
        slope = certain_slope(function, call, wanted, ours, 1 if found.what.startswith("first") else 2)
        if slope is None:  # at a corner, a number is better than none
            return found.aspect == "no nan where torch has one"
        return slope.agrees

    # ---------------------------------------------------------------- failures
    def fail(
        self,
        what: str,
        detail: str,
        call: SampleCall,
        wanted: tuple[str, ...] = (),
        order: int = 1,
        name: str = "",
        mistake: Mistake | None = None,
    ) -> None:
        """Note a call for which the rule is wrong."""
        if mistake is None and " dtype " in f" {what}":
            mistake = Mistake("wrong dtype", what)
        elif mistake is None and "derivative" not in what:
            mistake = Mistake("result", what)
        self.failures.append(FailedCall(what, detail, call, wanted, name, order, mistake))

    def fail_with(
        self, error: Exception, call: SampleCall, wanted: tuple[str, ...] = (), order: int = 1, when: str = ""
    ) -> None:
        """Note a call that raised."""
        text = f"{'backward' if order == 1 else 'the second backward'} raises {when}".rstrip()
        mistake = Mistake("raises", type(error).__name__)
        if isinstance(error, BackwardDiffersError):
            text = "backward() differs from grad()"
            mistake = Mistake(text, "the sweep that fills .grad gives another gradient than the one that returns it")
        elif isinstance(error, InPlaceError):
            mistake = Mistake("in-place write", WRITES)
        elif isinstance(error, RuleResultError):
            mistake = result_mistake(self.rule, self.main, call, error)
        self.fail(text, f"{type(error).__name__}: {error}", call, wanted, order, mistake=mistake)


def declines(error: Exception) -> bool:
    """Whether the rule, or the engine, says itself that it does not support the call."""
    return isinstance(error, UnsupportedCallError | UnsupportedError | NotImplementedError)


def certain_slope(
    function: Call, call: SampleCall, wanted: Sequence[int], ours: Derivatives, order: int
) -> Slope | None:
    """The derivative of ``function`` along a random direction; None where differences measure nothing."""
    measure = first_by_differences if order == 1 else second_by_differences
    try:
        slope = measure(function, call.leaves, wanted, ours)
    except Exception:  # sparse arguments cannot be moved, others lie at the end of where the op is defined
        return None
    return slope if slope.certain else None


def _as_in_double(
    function: Call, call: SampleCall, wanted: Sequence[int], ours: Derivatives, found: Difference
) -> bool:
    """Whether our gradient is, up to rounding, what the rule gives in double precision, which differences have been held against."""
    if found.what != "first derivative":
        return False
    wide = list(cast(dict(enumerate(call.leaves)), torch.float64).values())  # type: ignore[arg-type]
    double = differentiate(function, leaves_of(wide, wanted, tracked_leaf), wanted, 1, tracked_leaf).first[found.index]
    single = ours.first[found.index]
    if single is None or double is None:
        return False
    rtol, atol = drawn_tolerance(single)
    return torch.allclose(single.to(double.dtype), double, rtol=rtol, atol=atol, equal_nan=True)
