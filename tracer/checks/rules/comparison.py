"""One rule on one sample after the other: every comparison that ``check_rule`` makes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from ops_registry.binding import Spelling
from tracer.checks.derivatives import Derivatives, differentiate, first_difference
from tracer.checks.leaves import leaves_of, tracked_leaf
from tracer.checks.rules.call_checks import (
    check_formulas,
    check_gradient_layout,
    check_memory,
    check_single_results,
    check_tangents,
)
from tracer.checks.rules.checked_rule import CheckedRule, certain_slope, declines
from tracer.checks.rules.sample_call import SampleCall, cast, name_of
from tracer.checks.rules.samples import Sample, arranged
from tracer.checks.tolerances import drawn_tolerance

#: Of each source, so many samples are tried in the other dtypes, in the other spellings, and with an eye on the formulas.
OTHER_DTYPES, OTHER_SPELLINGS, WATCHED = 4, 6, 9


class Answer(Enum):
    """What came of one comparison."""

    RIGHT = "right"
    WRONG = "wrong"
    #: There is nothing to compare with: torch refuses the call or is itself wrong, or the rule says that it does not support the call.
    UNKNOWN = "unknown"


class RuleComparison:
    """A rule, and the spellings of its op, held against torch and against differences."""

    def __init__(self, checked: CheckedRule, others: list[Spelling]) -> None:
        self.checked, self.others = checked, others
        self.rule, self.main = checked.rule, checked.main
        self.options, self.report = checked.options, checked.report
        #: ``against`` of arguments by name, where it was given.
        self._definition: Callable[[dict[str, Any]], Any] | None = None
        if self.options.against is not None:
            self._definition = functools.partial(_define, self.options.against, self.main)
        self._tried: dict[str, int] = {}
        #: Whether torch's gradient of the present sample is another one than that of differences: then they say nothing in other dtypes.
        self._doubted = False

    # ---------------------------------------------------------------- one sample
    def check(self, sample: Sample) -> None:
        """Everything about one sample."""
        self._doubted = False
        turn = self._tried.get(sample.source, 0)
        found = len(self.checked.failures)
        dtype = torch.float64
        if self.options.dtypes and torch.float64 not in self.options.dtypes:
            dtype = self.options.dtypes[0]
            sample = Sample(cast(sample.values, dtype), sample.source)
        if not self._check_main(self._call(self.main, sample, dtype), turn):
            return
        self._tried[sample.source] = turn + 1
        self.report.examples[sample.source] += 1
        if len(self.checked.failures) > found:
            return
        if turn < OTHER_SPELLINGS:
            for spelling in self.others:
                self._check_spelling(self._call(spelling, sample, dtype))
        if turn < OTHER_DTYPES:
            for other in self.options.dtypes:
                if other != dtype:
                    self._check_dtype(sample, other)

    def _call(self, spelling: Spelling, sample: Sample, dtype: torch.dtype) -> SampleCall:
        return SampleCall(self.rule, spelling, sample, dtype, self._definition)

    def _check_main(self, call: SampleCall, turn: int) -> bool:
        """In the first spelling: both orders, each set of inputs, torch and differences, memory. False for a call that torch refuses."""
        if not call.runs:
            self.report.refused += 1
            return False
        compared = False
        for wanted in call.subsets():
            answer = self._compare(call, wanted, 2, everything=len(wanted) == len(call.able))
            if answer is Answer.WRONG:
                return True
            compared = compared or answer is Answer.RIGHT
        if compared and call.able and not self.rule.no_gradient:
            if turn < WATCHED:
                check_formulas(self.checked, call)
            check_gradient_layout(self.checked, call)
            check_single_results(self.checked, call)
            check_memory(self.checked, call)
            check_tangents(self.checked, call)
        if compared:
            self._note(call)
        return compared

    def _check_spelling(self, call: SampleCall) -> None:
        if self._compare(call, tuple(call.able), 1) is Answer.RIGHT:
            self.report.spellings[name_of(call.spelling)] += 1

    def _check_dtype(self, sample: Sample, dtype: torch.dtype) -> None:
        call = self._call(self.main, Sample(cast(sample.values, dtype), sample.source), dtype)
        if self._compare(call, tuple(call.able), 1, everything=dtype.is_complex) is Answer.RIGHT:
            self.report.dtypes[str(dtype)[6:]] += 1
            if dtype is torch.complex128:
                check_tangents(self.checked, call)

    def _note(self, call: SampleCall) -> None:
        self.report.dtypes[str(call.dtype)[6:]] += 1
        self.report.spellings[name_of(call.spelling)] += 1

    # ---------------------------------------------------------------- comparisons
    def _compare(self, call: SampleCall, wanted: tuple[int, ...], order: int, everything: bool = False) -> Answer:
        """Ours against torch's and, where ``everything`` is wanted, against differences."""
        theirs = self.checked.by_torch(call, wanted, order)
        refused = call.spelling is not self.main or not call.runs
        if call.definition is not None:  # it says nothing of what torch takes
            refused, theirs = True, theirs if call.runs else None
        if theirs is None and refused:
            self.report.refused += 1
            return Answer.UNKNOWN
        ours = self._ours(call, wanted, order, theirs)
        if isinstance(ours, Answer):
            return ours
        confirmed = self._compare_with_torch(call, wanted, ours, theirs)
        if confirmed is None:
            return Answer.WRONG
        measurable = call.dtype in (torch.float64, torch.complex128) and any(ours.requires_grad)
        measured = everything and self.options.differences and measurable
        if measured and not self._compare_with_differences(call, wanted, ours, confirmed):
            return Answer.WRONG
        self.report.orders[2 if ours.second else 1] += 1
        return Answer.RIGHT

    def _ours(
        self, call: SampleCall, wanted: tuple[int, ...], order: int, theirs: Derivatives | None
    ) -> Derivatives | Answer:
        """Our derivatives, to the highest order that the rule supports; else what came of the attempt."""
        for attempt in range(order, 0, -1):
            try:
                leaves = leaves_of(call.leaves, wanted, tracked_leaf)
                return differentiate(call, leaves, wanted, attempt, tracked_leaf)
            except Exception as error:
                said = str(error).splitlines()[0][:150]
                if declines(error):
                    self.report.unsupported[f"order {attempt}: {said}"] += 1
                elif attempt == 1 or (theirs is not None and theirs.second):
                    self.checked.fail_with(error, call, _names(call, wanted), attempt)
                    return Answer.WRONG
                else:
                    self.report.unsupported[f"order {attempt}: {type(error).__name__}: {said}"] += 1
        return Answer.UNKNOWN

    def _compare_with_torch(
        self, call: SampleCall, wanted: tuple[int, ...], ours: Derivatives, theirs: Derivatives | None
    ) -> int | None:
        """The order up to which torch confirms ours: 0 where it is not to be asked, or is itself wrong; None where ours are wrong."""
        if theirs is None or not self.options.torch_agrees:
            return 0
        self.report.against_torch += 1
        found = first_difference(ours, theirs, drawn_tolerance)
        if found is None:
            return 2 if theirs.second else 1
        order = 2 if found.what.startswith("second") else 1
        if self.checked.differences_approve(call, call, wanted, ours, found):
            self.report.torch_wrong += 1
            return order - 1
        names = _names(call, wanted)
        name = names[found.index] if found.what.endswith("derivative") and found.index < len(names) else ""
        self.checked.fail(f"{found.what or 'result'}: {found.aspect}", found.detail, call, names, order, name)
        return None

    def _compare_with_differences(
        self, call: SampleCall, wanted: tuple[int, ...], ours: Derivatives, confirmed: int
    ) -> bool:
        """Whether ours are those of differences, or these say nothing; torch has confirmed the derivatives up to order ``confirmed``."""
        for order in range(1, (2 if ours.second else 1) + 1):
            slope = certain_slope(call, call, wanted, ours, order)
            if slope is None:
                self.report.corners += 1
                continue
            self.report.against_differences += 1
            if slope.agrees:
                continue
            if order <= confirmed:
                self.report.doubtful += 1
                self._doubted = True
            elif not self._doubted:
                self.checked.fail(
                    f"{('first', 'second')[order - 1]} derivative: differs from central differences",
                    f"along a random direction backward gives {slope.predicted:.10g}, differences {slope.measured:.10g}",
                    call,
                    _names(call, wanted),
                    order,
                )
                return False
        return True


def _define(against: Callable[..., Any], main: Spelling, values: dict[str, Any]) -> Any:
    """The definition, of arguments given as to the first spelling."""
    args, kwargs = arranged(main, values)
    return against(*args, **kwargs)


def _names(call: SampleCall, wanted: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(call.names[i] for i in wanted)
