"""One operator of torch's operator database through tracked tensors, compared with torch's own autograd."""

from __future__ import annotations

import itertools
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tracer.checks.conformance.operators import DTYPES, Way, load_ops, tier_of, ways
from tracer.checks.conformance.samples import OpSample
from tracer.checks.derivatives import Derivatives, Tolerance, first_difference, to_the_bit
from tracer.checks.leaves import MakeLeaf, native_leaf, tracked_alone, tracked_leaf
from tracer.checks.op_database import OP_DB, samples_of
from tracer.checks.tolerances import database_tolerance


@dataclass(frozen=True)
class Job:
    """What is to be run of one operator; plain data that travels to a worker process."""

    op: str
    dtype: str = "float64"
    order: int = 1
    device: str = "cpu"
    #: At most that many samples; all of them where None.
    samples: int | None = None
    #: ``module:attribute`` of the list of operators.
    source: str = OP_DB
    #: Every tensor lies in memory with gaps, an offset and its axes in reverse order.
    noncontiguous: bool = False
    #: ``all`` inputs are tracked and want a gradient, or ``one`` at a time while the rest are plain.
    leaves: str = "all"


@dataclass
class OpFailure:
    """One way in which an operator fails: how often, and where first."""

    cause: str
    spelling: str
    sample: int
    example: str
    count: int = 1


@dataclass
class OpOutcome:
    """What came of one operator."""

    op: str
    tier: str
    dtype: str
    order: int
    #: Samples that at least one spelling compared, spellings that took part, comparisons made (one a sample and spelling).
    samples: int = 0
    spellings: list[str] = field(default_factory=list)
    checks: int = 0
    #: Calls that torch itself refuses, or cannot differentiate.
    skipped: int = 0
    failures: list[OpFailure] = field(default_factory=list)
    seconds: float = 0.0
    #: Why nothing was compared, where nothing was.
    note: str = ""

    @property
    def status(self) -> str:
        """``passed``, ``failed`` or ``untested`` (torch raised for every sample, or there is none)."""
        return "failed" if self.failures else "passed" if self.checks else "untested"

    def fail(self, cause: str, spelling: str = "", sample: int = -1, example: str = "") -> None:
        """Note a failure, together with those of the same cause."""
        for failure in self.failures:
            if failure.cause == cause:
                failure.count += 1
                return
        self.failures.append(OpFailure(cause, spelling, sample, example))


#: Operators whose values are compared with those that torch gives where no input requires grad: by which inputs require grad it
#: folds a batch into one matrix or does not, and gets two values that differ by rounding.
TWO_VALUES = {"matmul", "__rmatmul__", "nn.functional.linear"}

#: Operators whose values may be off by rounding: with the driver gelsy torch gives other bits from one call to the next.
NOT_REPEATABLE = {"linalg.lstsq", "linalg.lstsq.grad_oriented"}


def difference_between(ours: Derivatives, theirs: Derivatives, values: Tolerance = database_tolerance) -> str:
    """The first difference, said so that the same fault of two operators reads the same; empty if there is none.

    ``values`` is the tolerance of the results and of the arguments afterwards.
    """
    found = first_difference(ours, theirs, database_tolerance, values)
    return "" if found is None else found.cause


def with_values_of(call: Call, theirs: Derivatives) -> Derivatives:
    """The derivatives that torch gave, with the values that ours are to have."""
    if call.op not in TWO_VALUES:
        return theirs
    return replace(theirs, outputs=call.sample.derivatives(call.way, [], 1, native_leaf).outputs)


def value_tolerance(op: str, device: str) -> Tolerance:
    """How far values may be from torch's: not at all where the kernels are the same and add in a fixed order, as on the CPU."""
    return database_tolerance if op in NOT_REPEATABLE or torch.device(device).type != "cpu" else to_the_bit


def cause_of(error: BaseException) -> str:
    """Class and first line of an error, without what stands in brackets: the arguments differ from sample to sample."""
    line = next(iter(str(error).strip().splitlines()), "")
    shorter = re.sub(r" ?\([^()]*\)", "", line)
    while shorter != line:
        line, shorter = shorter, re.sub(r" ?\([^()]*\)", "", shorter)
    return f"{type(error).__name__}: {line[:200]}".rstrip(": ")


def _samples(op: Any, job: Job) -> Iterator[OpSample]:
    taken = samples_of(op, job.device, DTYPES[job.dtype], requires_grad=True)
    samples = map(OpSample.of, itertools.islice(taken, job.samples))
    return map(OpSample.noncontiguous, samples) if job.noncontiguous else samples


def lost_op(job: Job, cause: str, seconds: float) -> OpOutcome:
    """What came of an operator whose process crashed or ran out of time."""
    outcome = OpOutcome(job.op, tier_of(job.op), job.dtype, job.order, seconds=seconds)
    outcome.fail(cause)
    return outcome


def check_op(job: Job) -> OpOutcome:
    """Every spelling of one operator on every sample. Nothing but an end of the process keeps it from an answer."""
    began = time.perf_counter()
    outcome = OpOutcome(job.op, tier_of(job.op), job.dtype, job.order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        op = load_ops(job.source)[job.op]
        try:
            samples = list(_samples(op, job))
        except Exception as error:
            samples, outcome.note = [], f"torch cannot make the samples: {cause_of(error)}"
        compared = set()
        values = value_tolerance(job.op, job.device)
        for way in ways(op):
            for index, sample in enumerate(samples):
                if _check_call(outcome, Call(job.op, way, index, sample, values), job.leaves):
                    compared.add(index)
                    if way.name not in outcome.spellings:
                        outcome.spellings.append(way.name)
    outcome.samples = len(compared)
    if not outcome.checks and not outcome.note:
        outcome.note = f"torch itself raises for all of {len(samples)} samples" if samples else "no samples"
    outcome.seconds = time.perf_counter() - began
    return outcome


@dataclass(frozen=True)
class Call:
    """One sample of an operator in one spelling, and how far its values may be from torch's."""

    op: str
    way: Way
    index: int
    sample: OpSample
    values: Tolerance


def _check_call(outcome: OpOutcome, call: Call, leaves: str) -> bool:
    """Compare one call; False where torch itself raises."""
    try:
        wanted, theirs = call.sample.native(call.way, outcome.order)
    except Exception:
        outcome.skipped += 1
        return False
    if leaves == "one":
        compared = [_check_leaf(outcome, call, i) for i in wanted]
        return any(compared)
    _compare(outcome, call, wanted, theirs, tracked_leaf)
    return True


def _check_leaf(outcome: OpOutcome, call: Call, leaf: int) -> bool:
    """Compare one call in which one input alone is tracked; False where torch itself raises."""
    try:
        theirs = call.sample.derivatives(call.way, [leaf], outcome.order, native_leaf)
    except Exception:
        outcome.skipped += 1
        return False
    _compare(outcome, call, [leaf], theirs, tracked_alone)
    return True


def _compare(outcome: OpOutcome, call: Call, wanted: list[int], theirs: Derivatives, leaf: MakeLeaf) -> None:
    outcome.checks += 1
    try:
        ours = call.sample.derivatives(call.way, wanted, outcome.order, leaf)
        difference = difference_between(ours, with_values_of(call, theirs), call.values)
    except Exception as error:
        difference = cause_of(error)
    if difference:
        outcome.fail(difference, call.way.name, call.index, call.sample.text)
