"""One rule on one sample after the other: every comparison that ``check_rule`` makes, and what a failure looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from ops_registry.binding import Spelling
from ops_registry.errors import RuleResultError, UnsupportedCallError
from ops_registry.rule import Rule
from ops_registry.signatures import is_custom
from tracer.checks.derivatives import (
    SEED,
    Call,
    Derivatives,
    Difference,
    Slope,
    can_have_gradient,
    differentiate,
    first_by_differences,
    first_difference,
    leaves_of,
    native_leaf,
    plain,
    random_like,
    second_by_differences,
    strewn,
    tracked_leaf,
)
from tracer.checks.rules.diagnosis import Failure, close, result_mistake, watched
from tracer.checks.rules.sample_call import Bound, cast, name_of, our_bytes, torch_bytes
from tracer.checks.rules.samples import Sample
from tracer.errors import Mistake

if TYPE_CHECKING:
    from tracer.checks.rules.check import RuleReport

#: Samples that are tried in the other dtypes, and in the other spellings, of each source.
OTHER_DTYPES, OTHER_SPELLINGS = 4, 6

TOLERANCE = {
    torch.float64: (1e-9, 1e-10),
    torch.complex128: (1e-9, 1e-10),
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.bfloat16: (4e-2, 4e-2),
}


@dataclass(frozen=True)
class Options:
    """What ``check_rule`` was told."""

    dtypes: tuple[torch.dtype, ...]
    torch_agrees: bool = True
    differences: bool = True
    memory: bool = True


def tolerance_of(theirs: torch.Tensor) -> tuple[float, float]:
    """Relative and absolute tolerance for a tensor of torch's; the latter grows with the largest element, whose rounding others share."""
    rtol, atol = TOLERANCE.get(theirs.dtype, (0.0, 0.0))
    if theirs.numel() and can_have_gradient(theirs):
        atol *= max(1.0, float(theirs.to_dense().abs().nan_to_num(0, 0, 0).max()))
    return rtol, atol


class Run:
    """A rule under check, and what came of it so far."""

    def __init__(
        self, rule: Rule, main: Spelling, others: list[Spelling], options: Options, report: RuleReport
    ) -> None:
        self.rule, self.main, self.others = rule, main, others
        self.options, self.report = options, report
        self.failures: list[Failure] = []
        self._tried: dict[str, int] = {}

    # ---------------------------------------------------------------- one sample
    def call_plain(self, values: dict[str, Any]) -> Any:
        """The op on plain tensors."""
        bound = Bound(self.rule, self.main, values)
        return bound(leaves_of(bound.leaves, (), native_leaf))

    def check(self, sample: Sample) -> None:
        """Everything about one sample."""
        #: Whether torch's gradient of this sample is another one than that of differences: then they say nothing in other dtypes.
        self._doubted = False
        turn = self._tried.get(sample.source, 0)
        found = len(self.failures)
        kind = torch.float64
        if self.options.dtypes and torch.float64 not in self.options.dtypes:
            kind = self.options.dtypes[0]
            sample = Sample(cast(sample.values, kind), sample.source)
        if not self._check_main(sample, kind):
            return
        self._tried[sample.source] = turn + 1
        self.report.examples[sample.source] += 1
        if len(self.failures) > found:
            return
        if turn < OTHER_SPELLINGS:
            for spelling in self.others:
                self._check_spelling(sample, spelling, kind)
        if turn < OTHER_DTYPES:
            for dtype in self.options.dtypes:
                if dtype != kind:
                    self._check_dtype(sample, dtype)

    def _check_main(self, sample: Sample, dtype: torch.dtype) -> bool:
        """In the first spelling: both orders, each set of inputs, torch and differences, memory. False for a call that torch refuses."""
        bound = Bound(self.rule, self.main, sample.values)
        try:
            torch.manual_seed(SEED)
            bound(leaves_of(bound.leaves, (), native_leaf))
        except Exception:
            self.report.refused += 1
            return False
        compared = False
        for wanted in bound.subsets():
            outcome = self._compare(sample, bound, wanted, dtype, 2, everything=len(wanted) == len(bound.able))
            if outcome is None:
                continue
            compared = True
            if outcome is False:
                return True
        if compared and bound.able and not self.rule.no_gradient:
            self._check_formulas(sample, bound, dtype)
            self._check_gradient_layout(sample, bound, dtype)
            self._check_single_results(sample, bound, dtype)
            self._check_memory(sample, bound, dtype)
        if compared:
            self.report.dtypes[str(dtype)[6:]] += 1
            self.report.spellings[name_of(self.main)] += 1
        return compared

    def _check_spelling(self, sample: Sample, spelling: Spelling, dtype: torch.dtype) -> None:
        bound = Bound(self.rule, spelling, sample.values)
        if self._compare(sample, bound, tuple(bound.able), dtype, 1):
            self.report.spellings[name_of(spelling)] += 1

    def _check_dtype(self, sample: Sample, dtype: torch.dtype) -> None:
        sample = Sample(cast(sample.values, dtype), sample.source)
        bound = Bound(self.rule, self.main, sample.values)
        if self._compare(sample, bound, tuple(bound.able), dtype, 1, everything=dtype.is_complex):
            self.report.dtypes[str(dtype)[6:]] += 1

    # ---------------------------------------------------------------- comparisons
    def _compare(
        self,
        sample: Sample,
        bound: Bound,
        wanted: tuple[int, ...],
        dtype: torch.dtype,
        order: int,
        everything: bool = False,
    ) -> bool | None:
        """Ours against torch's and against differences; None where torch refuses, or the rule says that it does not support the call."""
        theirs = self._torch(bound, wanted, order)
        if theirs is None and (bound.spelling is not self.main or not self._runs(bound)):
            self.report.refused += 1
            return None
        names = tuple(bound.names[i] for i in wanted)
        ours = None
        while ours is None:
            try:
                leaves = leaves_of(bound.leaves, wanted, tracked_leaf)
                ours = differentiate(bound, leaves, wanted, order, tracked_leaf)
            except Exception as error:
                if _declines(error):
                    self.report.unsupported[f"order {order}: {str(error).splitlines()[0][:150]}"] += 1
                elif order == 1 or (theirs is not None and theirs.second):
                    self._fail_with(error, sample, bound, names, dtype, order)
                    return False
                else:
                    self.report.unsupported[f"order 2: {type(error).__name__}: {str(error).splitlines()[0][:150]}"] += 1
                if order == 1:
                    return None
                order = 1
        torch_says: str = "nothing"
        if theirs is not None and self.options.torch_agrees:
            self.report.against_torch += 1
            found = first_difference(ours, theirs, tolerance_of)
            torch_says = "right"
            if found is not None:
                if not self._differences_approve(bound, bound, wanted, ours, found, dtype):
                    index = found.index
                    name = names[index] if found.what.endswith("derivative") and index < len(names) else ""
                    self._fail(
                        f"{found.what or 'result'}: {found.aspect}",
                        found.detail,
                        sample,
                        bound,
                        names,
                        dtype,
                        2 if found.what.startswith("second") else 1,
                        name,
                    )
                    return False
                self.report.torch_wrong += 1
        if (
            everything
            and self.options.differences
            and dtype in (torch.float64, torch.complex128)
            and any(ours.requires_grad)
        ):
            for step in range(1, (2 if ours.second else 1) + 1):
                slope = self._measure(bound, bound, wanted, ours, step)
                if slope is None:
                    self.report.corners += 1
                    continue
                self.report.against_differences += 1
                if slope.agrees:
                    continue
                if torch_says == "right" and (step == 1 or (theirs is not None and theirs.second)):
                    self.report.doubtful += 1
                    self._doubted = True
                    continue
                if self._doubted:
                    continue
                self._fail(
                    f"{('first', 'second')[step - 1]} derivative: differs from central differences",
                    f"along a random direction backward gives {slope.predicted:.10g}, differences {slope.measured:.10g}",
                    sample,
                    bound,
                    names,
                    dtype,
                    step,
                )
                return False
        self.report.orders[2 if ours.second else 1] += 1
        return True

    def _runs(self, bound: Bound) -> bool:
        try:
            torch.manual_seed(SEED)
            bound(leaves_of(bound.leaves, (), native_leaf))
        except Exception:
            return False
        return True

    def _torch(self, bound: Bound, wanted: tuple[int, ...], order: int) -> Derivatives | None:
        """What torch's own autograd gives, to the highest order that it knows."""
        for attempt in range(order, 0, -1):
            try:
                leaves = leaves_of(bound.leaves, wanted, native_leaf)
                found = differentiate(bound, leaves, wanted, attempt, native_leaf)
            except Exception:
                continue
            # An op of somebody's own library that torch does not differentiate gives results without a history, and no error.
            known = any(g is not None for g in found.first) or not is_custom(self.main.func)
            if (any(found.requires_grad) and known) or self.rule.no_gradient or not wanted:
                return found
            return None if self.rule.formulas else found
        return None

    def _measure(self, call: Call, bound: Bound, wanted: Sequence[int], ours: Derivatives, order: int) -> Slope | None:
        """The derivative along a random direction; None where differences measure nothing."""
        measure = first_by_differences if order == 1 else second_by_differences
        try:
            slope = measure(call, bound.leaves, wanted, ours)
        except Exception:  # sparse arguments cannot be moved, others lie at the end of where the op is defined
            return None
        return slope if slope.certain else None

    def _differences_approve(
        self, call: Call, bound: Bound, wanted: Sequence[int], ours: Derivatives, found: Difference, dtype: torch.dtype
    ) -> bool:
        """Whether torch is what is wrong: differences can tell, and they say what the rule says."""
        visible = found.error > 1e-4 and found.aspect in ("values differ", "no nan where torch has one")
        if not (visible and self.options.differences and found.what.endswith("derivative")):
            return False
        if dtype not in (torch.float64, torch.complex128):
            return self._as_in_double(call, bound, wanted, ours, found)
        slope = self._measure(call, bound, wanted, ours, 1 if found.what.startswith("first") else 2)
        if slope is None:  # at a corner, a number is better than none
            return found.aspect == "no nan where torch has one"
        return slope.agrees

    def _as_in_double(
        self, call: Call, bound: Bound, wanted: Sequence[int], ours: Derivatives, found: Difference
    ) -> bool:
        """Whether our gradient is, up to rounding, what the rule gives in double precision, which differences have been held against."""
        if found.what != "first derivative":
            return False
        wide = list(cast(dict(enumerate(bound.leaves)), torch.float64).values())  # type: ignore[arg-type]
        double = differentiate(call, leaves_of(wide, wanted, tracked_leaf), wanted, 1, tracked_leaf).first[found.index]
        single = ours.first[found.index]
        if single is None or double is None:
            return False
        rtol, atol = tolerance_of(single)
        return torch.allclose(single.to(double.dtype), double, rtol=rtol, atol=atol, equal_nan=True)

    def _check_gradient_layout(self, sample: Sample, bound: Bound, dtype: torch.dtype) -> None:
        """A gradient that comes in with gaps or expanded gives what a contiguous one gives."""
        wanted = tuple(bound.able)
        try:
            torch.manual_seed(SEED)
            leaves = leaves_of(bound.leaves, wanted, tracked_leaf)
            live = [o for o in tree_leaves(bound(leaves)) if isinstance(o, torch.Tensor) and o.requires_grad]
            if not live:
                return
            usual = random_like(live, 1)
            ones = [torch.ones((), dtype=o.dtype).expand(o.shape) for o in live]
            for what, given, reference in (
                ("non-contiguous", [strewn(c) for c in usual], usual),
                ("expanded", ones, [o.contiguous() for o in ones]),
            ):
                pair = [
                    torch.autograd.grad(live, [leaves[i] for i in wanted], seeds, retain_graph=True, allow_unused=True)
                    for seeds in (given, reference)
                ]
                for k, (a, b) in enumerate(zip(*pair, strict=True)):
                    if a is not None and b is not None and not close(plain(a), plain(b)):
                        name = bound.names[wanted[k]]
                        self._fail(
                            f"another gradient when that of the result comes in {what}",
                            "",
                            sample,
                            bound,
                            (),
                            dtype,
                            1,
                            name,
                        )
                        return
        except Exception as error:
            if not _declines(error):
                self._fail_with(
                    error, sample, bound, (), dtype, 1, "with a gradient that comes in non-contiguous or expanded"
                )

    def _check_single_results(self, sample: Sample, bound: Bound, dtype: torch.dtype) -> None:
        """Of several results, each alone receives a gradient."""
        wanted = tuple(bound.able)
        theirs = self._torch(bound, wanted, 1)
        if theirs is None or not self.options.torch_agrees or sum(theirs.requires_grad) < 2:
            return
        for k in [k for k, lives in enumerate(theirs.requires_grad) if lives][:4]:

            def one(leaves: list[Any], k: int = k) -> Any:
                return [o for o in tree_leaves(bound(leaves)) if isinstance(o, torch.Tensor)][k]

            pair = []
            try:
                for leaf in (native_leaf, tracked_leaf):
                    pair.append(differentiate(one, leaves_of(bound.leaves, wanted, leaf), wanted, 1, leaf))
            except Exception as error:
                if pair and not _declines(error):
                    self._fail_with(error, sample, bound, (), dtype, 1, f"when result {k} alone has a gradient")
                return
            found = first_difference(pair[1], pair[0], tolerance_of)
            if found is None or found.what.startswith("argument"):
                continue
            if not self._differences_approve(one, bound, wanted, pair[1], found, dtype):
                self._fail(
                    f"{found.cause}, when result {k} alone has a gradient", found.detail, sample, bound, (), dtype
                )
                return

    def _check_memory(self, sample: Sample, bound: Bound, dtype: torch.dtype) -> None:
        """No more bytes are kept for backward than torch keeps."""
        wanted = tuple(bound.able)
        if not all(
            t.is_contiguous() for t in bound.leaves if isinstance(t, torch.Tensor) and t.layout == torch.strided
        ):
            return  # an input with gaps keeps more than its values, one that is expanded less: which is kept would decide
        if self._torch(bound, wanted, 1) is None:
            return
        theirs = torch_bytes(bound, wanted)
        ours = our_bytes(bound, wanted)
        if ours is None:
            return
        self.report.kept_bytes += ours
        if theirs is None or not self.options.torch_agrees:
            return
        self.report.torch_bytes += theirs
        if ours > theirs and self.options.memory:
            self._fail(
                "keeps more memory than torch",
                f"{ours} bytes, torch {theirs}; the rule saves {', '.join(self.rule.saves)}",
                sample,
                bound,
                (),
                dtype,
                mistake=Mistake(
                    "memory", "name less in the formulas' parameters: result in place of input, x_shape in place of x"
                ),
            )

    def _check_formulas(self, sample: Sample, bound: Bound, dtype: torch.dtype) -> None:
        """What projection hides: a formula that computes in a narrower dtype, and one that writes into what it is given."""
        if not self.rule.formulas or self.rule.forward is not None or self._tried.get(sample.source, 0) > 8:
            return
        seen: list[Mistake] = []
        try:
            with watched(self.rule, self.main, seen):
                differentiate(bound, leaves_of(bound.leaves, bound.able, tracked_leaf), bound.able, 1, tracked_leaf)
        except Exception:
            return  # the comparisons have seen it already
        if seen:
            self._fail(seen[0].text, "", sample, bound, (), dtype, mistake=seen[0])

    # ---------------------------------------------------------------- failures
    def _fail(
        self,
        what: str,
        detail: str,
        sample: Sample,
        bound: Bound,
        wanted: tuple[str, ...],
        dtype: torch.dtype,
        order: int = 1,
        name: str = "",
        mistake: Mistake | None = None,
    ) -> None:
        if mistake is None and " dtype " in f" {what}":
            mistake = Mistake("wrong dtype", what)
        elif mistake is None and "derivative" not in what:
            mistake = Mistake("result", what)
        self.failures.append(Failure(what, detail, bound.spelling, sample, dtype, wanted, name, order, mistake))

    def _fail_with(
        self,
        error: Exception,
        sample: Sample,
        bound: Bound,
        wanted: tuple[str, ...],
        dtype: torch.dtype,
        order: int,
        when: str = "",
    ) -> None:
        mistake = Mistake("raises", type(error).__name__)
        if type(error).__name__ == "InPlaceError":
            mistake = Mistake("in-place write", "a formula writes into the gradient or into what was kept for it")
        if isinstance(error, RuleResultError):
            mistake = result_mistake(self.rule, self.main, bound, error)
        text = f"{'backward' if order == 1 else 'the second backward'} raises {when}".rstrip()
        self._fail(text, f"{type(error).__name__}: {error}", sample, bound, wanted, dtype, order, mistake=mistake)


def _declines(error: Exception) -> bool:
    """Whether the rule, or the engine, says itself that it does not support the call."""
    from tracer.errors import UnsupportedError

    return isinstance(error, UnsupportedCallError | UnsupportedError | NotImplementedError)
