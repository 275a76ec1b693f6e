"""``check_rule(op)``: whether the rule of an op is right, on arguments drawn from its signature and from torch's operator database."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ops_registry.binding import Spelling
from ops_registry.errors import RuleCheckError
from ops_registry.registry import RULES, TABLE, find, op_name
from ops_registry.rule import Rule
from ops_registry.signatures import base_name, is_custom
from tracer.checks.rules.checked_rule import CheckedRule
from tracer.checks.rules.comparison import RuleComparison
from tracer.checks.rules.diagnosis import error_of
from tracer.checks.rules.drawing import drawing_plans
from tracer.checks.rules.harvest import from_database
from tracer.checks.rules.hypothesis_draws import collected, draws_of
from tracer.checks.rules.report import CheckOptions, RuleReport
from tracer.checks.rules.sample_call import SampleCall
from tracer.checks.rules.samples import Sample, named

CHECKED_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.complex128)

#: After so many calls that fail, no more are looked for.
MAX_FAILURES = 12

#: Calls of torch's operator database that a rule is checked with.
PER_RULE = 12


def check_rule(
    op: Callable[..., Any],
    *,
    inputs: Sequence[Any] | Any = None,
    keywords: Mapping[str, Any] | None = None,
    dtypes: Sequence[torch.dtype] = CHECKED_DTYPES,
    max_examples: int = 30,
    torch_agrees: bool = True,
    differences: bool = True,
    memory: bool = True,
    database: bool = True,
    against: Callable[..., Any] | None = None,
) -> RuleReport:
    """Check the rule of ``op``: values, first and second derivatives, every spelling, dtypes, layouts in memory, memory kept.

    Arguments are drawn with hypothesis from the op's signature (shapes that broadcast, 0-d, empty, non-contiguous, expanded), at most
    ``max_examples`` of them, and taken from torch's operator database where it knows the op (``database=False`` leaves that out).
    ``inputs``, a sequence of arguments or a hypothesis strategy of such, takes the place of both for an op whose arguments cannot be
    guessed; ``keywords`` are passed by name with each of them.

    Truth is torch's own autograd on plain tensors, where it differentiates the op (``torch_agrees=False`` where it is wrong), and central
    differences in float64 (``differences=False`` for a kernel whose arguments depend on each other). ``dtypes`` are those to try; one that
    the op refuses is left out. ``memory=False`` lets the rule keep more than torch keeps.

    Inside a ``use`` block it is the rule in force there. One that is not to be the derivative of the op is checked ``against`` its own
    definition: a function of the op's arguments that has the op's value and, by torch's own autograd, the gradient that the rule is to
    give, such as the ``apply`` of a ``torch.autograd.Function``. Differences are then left out, and memory is compared with what it saves.

    With ``CI`` in the environment, or a derandomised hypothesis profile, every run draws the same.

    Raises ``RuleCheckError``, which names the kind of mistake, the call and the file and line of the rule; also where there is no rule, or
    nothing that could be checked.
    """
    spelling = find(op)
    if spelling is None:
        raise RuleCheckError(f"{op!r} has no rule: register one with ops_registry.backward first", "no rule")
    began = time.perf_counter()
    own = against is None
    options = CheckOptions(tuple(dtypes), torch_agrees or not own, differences and own, memory, against)
    report = RuleReport(op_name(op))
    for rule, main in _rules(op, spelling):
        if inputs is not None:
            samples: Iterable[Sample] = _given(main, inputs, dict(keywords or {}), max_examples)
        else:
            taken = from_database(rule, PER_RULE) if database and not is_custom(op) else ()
            samples = itertools.chain(_derived(rule, main, max_examples), taken)
        _compare(rule, main, samples, options, report)
    report.seconds = time.perf_counter() - began
    if not report.examples and report.definition_error is not None:
        raise RuleCheckError(
            f"the definition that {report.op} was to be checked against took none of its calls: {report.definition_error}. It is called as "
            f"the op is.",
            "nothing checked",
        ) from report.definition_error
    if not report.examples:
        raise RuleCheckError(
            f"the arguments of {report.op} could not be guessed from its signature"
            f"{' and torch has no samples of it' if database else ''}. Pass inputs=: one set of arguments, as (tensor, 2.0), or a "
            f"hypothesis strategy that draws such tuples.",
            "nothing checked",
        )
    return report


def check_samples(rule: Rule, samples: Iterable[Sample], options: CheckOptions, max_examples: int = 0) -> RuleReport:
    """The same for a rule by itself, on samples at hand and ``max_examples`` derived ones: what the sweep over all rules runs.

    Raises ``RuleCheckError``; the report of a rule that nothing was found for has no examples.
    """
    began = time.perf_counter()
    report = RuleReport(rule.name)
    main = _main(rule)
    if main is None:
        return report
    derived = _derived(rule, main, max_examples) if max_examples else ()
    _compare(rule, main, itertools.chain(derived, samples), options, report)
    report.seconds = time.perf_counter() - began
    return report


def _compare(rule: Rule, main: Spelling, samples: Iterable[Sample], options: CheckOptions, report: RuleReport) -> None:
    """Hold one rule against torch and differences, and note in the report what was looked at. Raises ``RuleCheckError``."""
    checked = CheckedRule(rule, main, options, report)
    comparison = RuleComparison(checked, _spellings(rule, main))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples:
            comparison.check(sample)
            if len(checked.failures) >= MAX_FAILURES:
                break
    if checked.failures:
        raise error_of(rule, checked.failures, report.examples.total())


# ---------------------------------------------------------------------------------------------- rules and spellings
def _rules(op: Callable[..., Any], spelling: Spelling) -> list[tuple[Rule, Spelling]]:
    """The rule of the op with the spelling to call it by; one for each overload where they have rules of their own."""
    if not spelling.by_overload:
        _refuse_scope(spelling)
        return [(spelling.rule, spelling if not spelling.inplace else _main(spelling.rule) or spelling)]
    prefix = f"{op_name(op)}."
    mains = [_main(rule) for name, rule in RULES.items() if name.startswith(prefix)]
    in_force = [(find(main.func) or main, main) for main in mains if main is not None]
    for found, _ in in_force:
        _refuse_scope(found)
    return [(found.rule, main) for found, main in in_force]


def _refuse_scope(spelling: Spelling) -> None:
    if spelling.choose is not None:
        raise RuleCheckError(
            f"the rule of {spelling.rule.name} that is in force here holds in a scope alone (where=), and the calls of check_rule are made "
            f"outside of it. Check it in a block without where=.",
            "scoped",
        )


def _main(rule: Rule) -> Spelling | None:
    """The spelling that a rule is checked in first: the function, before methods, kernels and in-place forms."""
    found = [s for s in TABLE.values() if s.rule.name == rule.name and s.choose is None]

    def order(spelling: Spelling) -> tuple[int, str]:
        func = spelling.func
        overload = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
        method = getattr(func, "__objclass__", None) is not None or getattr(func, "__name__", "").startswith("__")
        exact = getattr(func, "__name__", "") == rule.name
        return (4 * spelling.inplace + 2 * method + overload, "" if exact else str(func))

    return min(found, key=order, default=None)


def _spellings(rule: Rule, main: Spelling) -> list[Spelling]:
    """Every other way to write the op, in-place forms included."""
    base = rule.name.split(".")[0]
    found = []
    for func, spelling in TABLE.items():
        if func is main.func:
            continue
        chosen = spelling.choose is not None and "." in rule.name and base_name(func).rstrip("_") == base
        if chosen or (spelling.choose is None and spelling.rule.name == rule.name):
            found.append(spelling)
    return found


# ---------------------------------------------------------------------------------------------- where arguments come from
def _derived(rule: Rule, main: Spelling, count: int) -> Iterator[Sample]:
    """Arguments drawn from the signature, where that is enough to go by."""
    if rule.name.startswith(("_", "native_")) or "_backward" in rule.name:
        return  # kernels trust their caller, and end the process where arguments do not fit

    def call(values: dict[str, Any]) -> Any:
        return SampleCall(rule, main, Sample(values, "derived")).run_plain()

    plans = drawing_plans(main.func, rule, call)
    for values in draws_of(plans, count) if plans else ():
        yield Sample(values, "derived")


def _given(main: Spelling, inputs: Any, keywords: dict[str, Any], count: int) -> Iterator[Sample]:
    """What the caller passes: one set of arguments, or a strategy of such."""
    drawn = collected(inputs, count) if hasattr(inputs, "example") and hasattr(inputs, "map") else [tuple(inputs)]
    for args in drawn:
        yield Sample(named(main, tuple(args), keywords), "given")
