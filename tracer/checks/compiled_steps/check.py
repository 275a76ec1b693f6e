"""Compiled steps of one operator, held to the same steps run eagerly."""

from __future__ import annotations

import itertools
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracer.checks.compiled_steps.steps import Given, Joined, Step, differ, given_by, unseeded
from tracer.checks.conformance.operators import Way, full_name, ways
from tracer.checks.conformance.samples import OpSample
from tracer.checks.op_database import OP_DB, listed_ops, samples_of
from tracer.compiled.api import compile
from tracer.errors import CaptureError

#: Samples of one operator that become one graph of a compiler's.
TOGETHER = 4
#: A call with the values of the sample, one with others, one with the first again: what a call leaves behind would show there.
CALLS = (False, True, False)

#: Operators whose results nobody has written: there is nothing to compare.
UNWRITTEN = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


@dataclass(frozen=True)
class Job:
    """What is to be run of one operator; plain data that travels to a worker process."""

    op: str
    backend: str = "replay"
    dtype: torch.dtype = torch.float64
    #: At most that many samples; all of them where None.
    samples: int | None = None
    #: Every tensor lies in memory with gaps, an offset and its axes in reverse order.
    noncontiguous: bool = False


@dataclass
class Outcome:
    """What was found of one operator."""

    op: str
    #: How many samples are equal, refused, of another stream, failed, or raise without a compiled step.
    counts: Counter[str] = field(default_factory=Counter)
    #: What each is refused with, and the first that fails.
    refused: list[str] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0


class _Sample:
    """One sample, and what its eager step gives in each of the calls."""

    def __init__(self, step: Step | Joined, eager: list[Given]) -> None:
        self.step = step
        self.eager = eager

    def compared(self, backend: str) -> str | None:
        """How the compiled step differs. Raises what it raises."""
        compiled = compile(self.step, backend=backend)
        for call, (other, expected) in enumerate(zip(CALLS, self.eager, strict=False)):
            text = differ(given_by(compiled, self.step.inputs(other)), expected)
            if text is not None:
                return f"call {call}: {text}"
        return None

    @property
    def draws(self) -> bool:
        """Whether what it gives depends on the seed."""
        return differ(self.eager[0], given_by(self.step, self.step.inputs(False), seed=1)) is not None


def load(_: object = None) -> dict[str, Any]:
    """All operators of the database by full name."""
    return {full_name(op): op for op in listed_ops(OP_DB)}


def applies(op: Any, dtype: torch.dtype) -> bool:
    """Whether the operator takes this dtype on the CPU, and its results are the same each time."""
    return full_name(op) not in UNWRITTEN and dtype in op.supported_dtypes("cpu")


def check_op(job: Job) -> Outcome:
    """Every sample of one operator, in every spelling where no compiler is asked."""
    began = time.perf_counter()
    outcome = Outcome(job.op)
    op = load()[job.op]
    samples = _samples(op, job)
    for way in ways(op):
        if way.name == "function" or job.backend == "replay":  # a compiler gets the same graph of every spelling
            _check_spelling(way, samples, job.backend, outcome)
    outcome.counts += Counter()
    outcome.seconds = time.perf_counter() - began
    return outcome


def _check_spelling(way: Way, samples: Sequence[OpSample], backend: str, outcome: Outcome) -> None:
    with warnings.catch_warnings(), unseeded(way.function):
        warnings.simplefilter("ignore")
        equal = []
        for sample in samples:
            found = _eager(Step(way, sample), outcome)
            # what a graph gives without a compiler, and whether it can be captured, is the same for every backend
            if found is not None and _hold(found, "replay", outcome, f"{way.name}, {sample.text}"):
                equal.append(found)
        if backend != "replay":
            outcome.counts["equal"] -= len(equal)
            for start in range(0, len(equal), TOGETHER):
                _hold_together(equal[start : start + TOGETHER], backend, outcome)


def lost_op(job: Job, cause: str, seconds: float) -> Outcome:
    """What came of an operator whose process crashed or ran out of time."""
    return Outcome(job.op, Counter({"failed": 1}), failure=cause, seconds=seconds)


def _samples(op: Any, job: Job) -> list[OpSample]:
    """None where torch cannot make them."""
    wanted = op.supports_autograd and job.dtype in op.supported_backward_dtypes("cpu")
    try:
        taken = [OpSample.of(s) for s in itertools.islice(samples_of(op, "cpu", job.dtype, wanted), job.samples)]
    except Exception:
        return []
    return [sample.noncontiguous() for sample in taken] if job.noncontiguous else taken


def _eager(step: Step, outcome: Outcome) -> _Sample | None:
    """The sample with what the eager step gives; None, and a count, where that raises."""
    eager: list[Given] = []
    for other in CALLS:
        try:
            eager.append(given_by(step, step.inputs(other)))
        except Exception:
            outcome.counts["raises eagerly" if not eager else "other values raise eagerly"] += 1
            break
    return _Sample(step, eager) if eager else None


def _hold(sample: _Sample, backend: str, outcome: Outcome, text: str) -> bool:
    """Note what comes of one sample; whether it is equal."""
    try:
        difference = sample.compared(backend)
    except CaptureError as error:
        outcome.counts["refused"] += 1
        outcome.refused.append(str(error))
        return False
    except Exception as error:
        difference = f"{type(error).__name__}: {error}"
    if difference is None:
        outcome.counts["equal"] += 1
    elif backend != "replay" and sample.draws:
        outcome.counts["of another stream"] += 1
    else:
        outcome.counts["failed"] += 1
        outcome.failure = outcome.failure or f"{text}: {difference}"[:800]
    return difference is None


def _hold_together(samples: Sequence[_Sample], backend: str, outcome: Outcome) -> None:
    """One graph for all; where that is not equal, one for each."""
    calls = min(len(sample.eager) for sample in samples)
    joined = Joined([sample.step for sample in samples if isinstance(sample.step, Step)])
    try:
        eager = [given_by(joined, joined.inputs(other)) for other in CALLS[:calls]]
        if _Sample(joined, eager).compared(backend) is None:
            outcome.counts["equal"] += len(samples)
            return
    except Exception:
        pass  # each alone tells which
    for sample in samples:
        assert isinstance(sample.step, Step)
        _hold(sample, backend, outcome, sample.step.sample.text)
