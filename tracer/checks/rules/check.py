"""``check_rule(op)``: whether the rule of an op is right, on arguments drawn from its signature and from torch's operator database."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry import registry
from ops_registry.binding import Spelling
from ops_registry.errors import RuleCheckError
from ops_registry.registry import TABLE
from ops_registry.rule import Rule
from ops_registry.signatures import base_name, is_custom
from tracer.checks.rules.comparison import Options, Run
from tracer.checks.rules.diagnosis import Failure, error_of
from tracer.checks.rules.samples import HypothesisDice, Plan, Sample, from_database, named, plans

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.complex128)

#: After so many calls that fail, no more are looked for.
ENOUGH = 12


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


def check_rule(
    op: Callable[..., Any],
    *,
    inputs: Sequence[Any] | Any = None,
    keywords: Mapping[str, Any] | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    max_examples: int = 30,
    torch_agrees: bool = True,
    differences: bool = True,
    memory: bool = True,
    database: bool = True,
) -> RuleReport:
    """Check the rule of ``op``: values, first and second derivatives, every spelling, dtypes, layouts in memory, memory kept.

    Arguments are drawn with hypothesis from the op's signature (shapes that broadcast, 0-d, empty, non-contiguous, expanded), at most
    ``max_examples`` of them, and taken from torch's operator database where it knows the op (``database=False`` leaves that out).
    ``inputs``, a sequence of arguments or a hypothesis strategy of such, takes the place of both for an op whose arguments cannot be
    guessed; ``keywords`` are passed by name with each of them.

    Truth is torch's own autograd on plain tensors, where it differentiates the op (``torch_agrees=False`` where it is wrong), and central
    differences in float64 (``differences=False`` for a kernel whose arguments depend on each other). ``dtypes`` are those to try; one that
    the op refuses is left out. ``memory=False`` lets the rule keep more than torch keeps.

    With ``CI`` in the environment, or a derandomised hypothesis profile, every run draws the same.

    Raises ``RuleCheckError``, which names the kind of mistake, the call and the file and line of the rule; also where there is no rule, or
    nothing that could be checked.
    """
    spelling = registry.find(op)
    if spelling is None:
        raise RuleCheckError(f"{op!r} has no rule: register one with ops_registry.backward first", "no rule")
    began = time.perf_counter()
    options = Options(tuple(dtypes), torch_agrees, differences, memory)
    report = RuleReport(registry.op_name(op))
    failures: list[Failure] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rule, main in _rules(op, spelling):
            run = Run(rule, main, _spellings(rule, main), options, report)
            if inputs is not None:
                samples: Iterable[Sample] = _given(main, inputs, dict(keywords or {}), max_examples)
            else:
                taken = from_database(rule, 12) if database and not is_custom(op) else ()
                samples = itertools.chain(_derived(main, rule, run, max_examples), taken)
            for sample in samples:
                run.check(sample)
                if len(run.failures) >= ENOUGH:
                    break
            failures += run.failures
            if failures:
                break
    report.seconds = time.perf_counter() - began
    if failures:
        raise error_of(rule, failures, report.examples.total())
    if not report.examples:
        raise RuleCheckError(
            f"the arguments of {report.op} could not be guessed from its signature"
            f"{' and torch has no samples of it' if database else ''}. Pass inputs=: one set of arguments, as (tensor, 2.0), or a "
            f"hypothesis strategy that draws such tuples.",
            "nothing checked",
        )
    return report


def check_samples(rule: Rule, samples: Iterable[Sample], options: Options, max_examples: int = 0) -> RuleReport:
    """The same for a rule by itself, on samples at hand and ``max_examples`` derived ones: what the sweep over all rules runs.

    Raises ``RuleCheckError``; the report of a rule that nothing was found for has no examples.
    """
    began = time.perf_counter()
    report = RuleReport(rule.name)
    main = _main(rule)
    if main is None:
        return report
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(rule, main, _spellings(rule, main), options, report)
        for sample in itertools.chain(_derived(main, rule, run, max_examples) if max_examples else (), samples):
            run.check(sample)
            if len(run.failures) >= ENOUGH:
                break
    report.seconds = time.perf_counter() - began
    if run.failures:
        raise error_of(rule, run.failures, report.examples.total())
    return report


# ---------------------------------------------------------------------------------------------- rules and spellings
def _rules(op: Callable[..., Any], spelling: Spelling) -> list[tuple[Rule, Spelling]]:
    """The rule of the op with the spelling to call it by; one for each overload where they have rules of their own."""
    if spelling.pick_overload is None:
        return [(spelling.rule, spelling if not spelling.inplace else _main(spelling.rule) or spelling)]
    prefix = f"{registry.op_name(op)}."
    found = [(r, _main(r)) for name, r in registry.RULES.items() if name.startswith(prefix)]
    return [(r, main) for r, main in found if main is not None]


def _main(rule: Rule) -> Spelling | None:
    """The spelling that a rule is checked in first: the function, before methods, kernels and in-place forms."""
    found = [s for s in TABLE.values() if s.rule.name == rule.name and s.pick_overload is None]

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
        chosen = spelling.pick_overload is not None and "." in rule.name and base_name(func).rstrip("_") == base
        if chosen or (spelling.pick_overload is None and spelling.rule.name == rule.name):
            found.append(spelling)
    return found


# ---------------------------------------------------------------------------------------------- where arguments come from
def _hypothesis() -> Any:
    try:
        import hypothesis
    except ImportError as error:
        raise RuleCheckError(
            "check_rule draws arguments with hypothesis, which is not installed: pip install hypothesis. (Concrete inputs= need it not.)",
            "nothing checked",
        ) from error
    return hypothesis


def _collect(strategy: Any, count: int) -> list[Any]:
    """``count`` draws of a hypothesis strategy; the same ones every time where ``CI`` is set or the profile says so."""
    hypothesis = _hypothesis()
    found: list[Any] = []
    chosen = hypothesis.settings(
        max_examples=count,
        derandomize=bool(os.environ.get("CI")) or hypothesis.settings.default.derandomize,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    chosen(hypothesis.given(strategy)(lambda drawn: found.append(drawn)))()
    return found


def _derived(main: Spelling, rule: Rule, run: Run, count: int) -> Iterator[Sample]:
    """Arguments drawn from the signature, where that is enough to go by."""
    if rule.name.startswith(("_", "native_")) or "_backward" in rule.name:
        return  # kernels trust their caller, and end the process where arguments do not fit
    found = plans(main.func, rule, run.call_plain)
    if not found:
        return
    hypothesis = _hypothesis()

    @hypothesis.strategies.composite
    def arguments(draw: Callable[[Any], Any]) -> dict[str, Any]:
        dice = HypothesisDice(draw)
        plan: Plan = dice.choice(found)
        return plan.draw(dice)

    for values in _collect(arguments(), count):
        yield Sample(values, "derived")


def _given(main: Spelling, inputs: Any, keywords: dict[str, Any], count: int) -> Iterator[Sample]:
    """What the caller passes: one set of arguments, or a strategy of such."""
    drawn = _collect(inputs, count) if hasattr(inputs, "example") and hasattr(inputs, "map") else [tuple(inputs)]
    for args in drawn:
        yield Sample(named(main, tuple(args), keywords), "given")
